"""Versions of this process, and version compatibility of peers."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scaler._version import __version__
from scaler.protocol import messages as m

_SHARE_CODE = frozenset({m.Role.CLIENT, m.Role.WORKER})
"""Roles that load each other's pickled functions, and therefore need matching versions of Python and cloudpickle."""


def own_hello(role: m.Role, details: m.Details = None) -> m.Hello:
    """Return a Hello with this process's versions, host, and pid. Connectors set `resume`."""
    return m.Hello(
        role=role,
        resume=False,
        protocol_version=m.PROTOCOL_VERSION,
        scaler_version=__version__,
        python_version=python_version(),
        cloudpickle_version=cloudpickle_version(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        details=details,
    )


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@cache
def cloudpickle_version() -> str:
    """Read cloudpickle's version from its metadata directory, to save the 2.5 MB that importlib.metadata takes."""
    spec = find_spec("cloudpickle")
    if spec is not None and spec.origin is not None:
        for info in Path(spec.origin).parents[1].glob("cloudpickle-*.dist-info"):
            return info.name.removeprefix("cloudpickle-").removesuffix(".dist-info")
    from importlib.metadata import version  # noqa: PLC0415 (see above)

    return version("cloudpickle")


def check_versions(hello: m.Hello) -> m.Refused | None:
    """Return the refusal for a peer with incompatible versions, naming both sides. None: compatible. The protocol
    version must be equal. Clients and workers also need equal major and minor versions of Python and cloudpickle,
    except clients in other languages, which refer to functions by name."""
    text = ""
    # The peer's texts are truncated to keep the message within its size limit.
    peer = f"the {hello.role} on {hello.hostname:.64} (pid {hello.pid}, scaler {hello.scaler_version:.64})"
    ours = f"this server on {socket.gethostname()} (scaler {__version__})"
    if hello.protocol_version != m.PROTOCOL_VERSION:
        text = (
            f"{peer} speaks protocol {hello.protocol_version}, {ours} speaks protocol {m.PROTOCOL_VERSION}: "
            f"install the same version of scaler on both sides"
        )
    elif hello.role is m.Role.CLIENT and not hello.python_version and not hello.cloudpickle_version:
        pass
    elif hello.role in _SHARE_CODE and minor_version(hello.python_version) != python_version():
        text = (
            f"{peer} runs Python {hello.python_version:.64}, {ours} runs Python {python_version()}: "
            f"use the same minor version of Python everywhere"
        )
    elif hello.role in _SHARE_CODE and minor_version(hello.cloudpickle_version) != minor_version(cloudpickle_version()):
        text = (
            f"{peer} has cloudpickle {hello.cloudpickle_version:.64}, "
            f"{ours} has cloudpickle {cloudpickle_version()}: install the same version everywhere"
        )
    return m.Refused(m.RefusalReason.VERSION, text) if text else None


def other_protocol(version: int, hello: m.Hello | None) -> m.Refused:
    if hello is not None and (refused := check_versions(replace(hello, protocol_version=version))):
        return refused
    text = (
        f"a peer uses protocol {version}, this server on {socket.gethostname()} (scaler {__version__}) speaks "
        f"protocol {m.PROTOCOL_VERSION}: install the same version of scaler on both sides"
    )
    return m.Refused(m.RefusalReason.VERSION, text)


def minor_version(text: str) -> str:
    return ".".join(text.split(".")[:2])
