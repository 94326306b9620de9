"""The stored inputs of fuzz targets, and message bodies for mutations."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from scaler.errors import ProtocolError
from scaler.net.versions import own_hello
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import PROTOCOL_VERSION, Hello
from tests.fuzz.conversations import Spoken, pack, unpack
from tests.fuzz.samples import Sampler, every_message

CORPUS = Path(__file__).with_name("corpus")


CONVERSATIONS = ("scheduler", "storage", "answers")


@cache
def seeds(name: str) -> tuple[bytes, ...]:
    """Return a target's stored inputs, ordered by name. Conversations look as if recorded today."""
    found = [file.read_bytes() for file in sorted((CORPUS / name).glob("*"))]
    return tuple(pack(map(_localized, unpack(data))) if name in CONVERSATIONS else data for data in found)


def _localized(spoken: Spoken) -> Spoken:
    """Return an envelope in this process's protocol, with its versions if it contains a Hello."""
    header = PROTOCOL_VERSION.to_bytes(4, "little") + spoken.header[4:]
    try:
        hello = decode(spoken.body)
    except ProtocolError:
        return spoken._replace(header=header)
    if not isinstance(hello, Hello):
        return spoken._replace(header=header)
    own = own_hello(hello.role)
    versions = {name: getattr(own, name) for name in ("protocol_version", "python_version", "cloudpickle_version")}
    return spoken._replace(header=header, body=encode(replace(hello, **versions)))


@cache
def bodies() -> tuple[bytes, ...]:
    """Return a body of every message type, and all bodies in the recorded conversations."""
    found = {encode(each): None for choice in range(3) for each in every_message(Sampler(choice=choice))}
    for name in CONVERSATIONS:
        for data in seeds(name):
            found |= {each.body: None for each in unpack(data)}
    return tuple(found)


def keep(name: str, data: bytes) -> Path:
    """Add an input to a target's corpus, named by its digest to avoid duplicates."""
    file = CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file
