"""Mutations that break readers: of bytes, Cap'n Proto words, envelopes, and whole conversations."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

from scaler.protocol.messages import MESSAGES
from scaler.protocol.session import HEADER_BYTES
from tests.fuzz.conversations import Spoken, pack, unpack

WORD = 8
MAX_BODY_BYTES = 64 * 1024
_NUMBERS = (0, 1, 2, 0xFF, 0x7FFF, 0xFFFF, 2**29 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_SECONDS = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 1e300, 1.7e308, 5e-324)


def body_of(random: Random, body: bytes, pool: Sequence[bytes]) -> bytes:
    """Return a body with changes in one to four places."""
    changed = bytearray(body)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if not changed:
            return random.choice(pool)
        _BODY_CHANGES[random.randrange(len(_BODY_CHANGES))](random, changed, pool)
    return bytes(changed[:MAX_BODY_BYTES])


def conversation_of(random: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Return a conversation with some envelopes changed, omitted, repeated, or moved."""
    envelopes = unpack(data)
    if not envelopes:
        return random.choice(pool)
    for _ in range(random.randint(1, max(2, len(envelopes)))):
        at = random.randrange(len(envelopes))
        _CONVERSATION_CHANGES[random.randrange(len(_CONVERSATION_CHANGES))](random, envelopes, at, pool)
        if not envelopes:
            return random.choice(pool)
    if random.random() < 0.7:
        envelopes = renumbered(envelopes)
    changed = pack(envelopes)
    if random.random() < 0.1:
        changed = bytes_of(random, changed)
    return changed


def bytes_of(random: Random, data: bytes) -> bytes:
    """Return data with bits flipped, bytes replaced, or a part omitted or repeated."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        if not changed:
            break
        at = random.randrange(len(changed))
        match random.randrange(5):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + random.randint(1, 64)]
            case _:
                changed[at:at] = changed[at : at + random.randint(1, 64)]
    return bytes(changed)


def renumbered(envelopes: Sequence[Spoken]) -> list[Spoken]:
    """Return envelopes without gaps in their sequence numbers, so all reach the reader behind the session."""
    numbered = []
    last = 0
    for envelope in envelopes:
        header = envelope.header
        if len(header) == HEADER_BYTES and header[24:32] != bytes(8):
            last += 1
            header = header[:24] + last.to_bytes(8, "little") + header[32:]
        numbered.append(Spoken(header, envelope.body, envelope.attachments))
    return numbered


# -- mutations of a body


def _flip(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    body[random.randrange(len(body))] ^= 1 << random.randrange(8)


def _word_at(random: Random, body: bytearray) -> int:
    return random.randrange(max(1, len(body) // WORD)) * WORD


def _set(body: bytearray, at: int, word: int) -> None:
    body[at : at + WORD] = (word & 2**64 - 1).to_bytes(WORD, "little")


def _number(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    size = random.choice((1, 2, 4, 8))
    at = random.randrange(max(1, len(body) // size)) * size
    body[at : at + size] = (random.choice(_NUMBERS) & 256**size - 1).to_bytes(size, "little")


def _float(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    at = _word_at(random, body)
    body[at : at + WORD] = struct.pack("<d", random.choice(_SECONDS))


def _list(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    """Change a pointer to a list: to another size, up to 2^29 elements, itself, or another pointer."""
    count = random.choice((2**29 - 1, 2**28, 65_536, 8_191, 1_000, len(body), len(body) // WORD, 1))
    offset = random.choice((-1, 0, 1, -2, random.randint(-len(body) // WORD, len(body) // WORD)))
    _set(body, _word_at(random, body), count << 35 | random.randrange(8) << 32 | (offset & 0x3FFF_FFFF) << 2 | 1)


def _struct(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    sizes = random.choice((0, 1, 2, 0xFFFF)) << 32 | random.choice((0, 1, 2, 0xFFFF)) << 48
    offset = random.choice((-1, 0, 1, random.randint(-len(body) // WORD, len(body) // WORD)))
    _set(body, _word_at(random, body), sizes | (offset & 0x3FFF_FFFF) << 2)


def _far(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    segment = random.choice((0, 0, 1, 511, 2**32 - 1))
    place = random.randrange(len(body) // WORD + 2)
    _set(body, _word_at(random, body), segment << 32 | place << 3 | random.choice((2, 6)))


def _copy_word(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    source, to = _word_at(random, body), _word_at(random, body)
    body[to : to + WORD] = body[source : source + WORD]


def _same_again(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    """Point to one place many times, for amplification."""
    source, to = _word_at(random, body), _word_at(random, body)
    word = int.from_bytes(body[source : source + WORD], "little")
    for number in range(random.randint(2, 64)):
        at = to + number * WORD
        if at + WORD > len(body):
            break
        offset = ((word >> 2 & 0x3FFF_FFFF) - number) & 0x3FFF_FFFF
        _set(body, at, word & ~0xFFFF_FFFC | offset << 2)


def _cut(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    at = random.randrange(len(body))
    if random.random() < 0.5:
        at = at // WORD * WORD
    del body[at:]
    _fit_segment(random, body)


def _fit_segment(random: Random, body: bytearray) -> None:
    """Usually make the only segment end with the body."""
    if random.random() < 0.7:
        del body[len(body) // WORD * WORD :]
        if len(body) >= 2 * WORD:
            body[4:8] = (len(body) // WORD - 1).to_bytes(4, "little")


def _grow(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    """Append words to the body and to its segment."""
    body += random.randbytes(random.choice((1, 8, 64))) * random.choice((1, 8, 64))
    _fit_segment(random, body)


def _splice(random: Random, body: bytearray, pool: Sequence[bytes]) -> None:
    other = random.choice(pool)
    at, begin = _word_at(random, body), random.randrange(max(1, len(other) // WORD)) * WORD
    size = random.choice((WORD, 2 * WORD, 8 * WORD, len(other)))
    body[at : at + size] = other[begin : begin + size]


def _kind(random: Random, body: bytearray, _pool: Sequence[bytes]) -> None:
    """Combine one message's content with another's number."""
    body[16:18] = random.choice((random.randrange(len(MESSAGES)), len(MESSAGES), 0xFFFF)).to_bytes(2, "little")


_BODY_CHANGES: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    _flip,
    _flip,
    _number,
    _number,
    _float,
    _list,
    _list,
    _struct,
    _far,
    _copy_word,
    _same_again,
    _cut,
    _grow,
    _splice,
    _kind,
)


# -- mutations of a conversation


def _change_body(random: Random, envelopes: list[Spoken], at: int, pool: Sequence[bytes]) -> None:
    header, body, attachments = envelopes[at]
    envelopes[at] = Spoken(header, body_of(random, body, pool), attachments)


def _foreign_body(random: Random, envelopes: list[Spoken], at: int, pool: Sequence[bytes]) -> None:
    """Insert a message from another role or another conversation."""
    body = random.choice(pool)
    if random.random() < 0.5:
        envelopes[at] = Spoken(envelopes[at].header, body, envelopes[at].attachments)
    else:
        header = envelopes[at].header
        if header[24:32] == bytes(8) and random.random() < 0.8:
            header = header[:24] + b"\x01" + header[25:]
        envelopes.insert(at + 1, Spoken(header, body, ()))


def _change_header(random: Random, envelopes: list[Spoken], at: int, _pool: Sequence[bytes]) -> None:
    """Change the session, sequence number, acknowledgement, version, or length."""
    header, body, attachments = envelopes[at]
    changed = bytearray(header)
    match random.randrange(6):
        case 0:
            changed[8:24] = random.choice((random.randbytes(16), changed[8:16] + random.randbytes(8), bytes(16)))
        case 1:
            changed[24:32] = random.choice((random.randrange(300), *_NUMBERS)).to_bytes(8, "little")
        case 2:
            changed[32:40] = random.choice((random.randrange(300), *_NUMBERS)).to_bytes(8, "little")
        case 3:
            changed[0:8] = random.choice(_NUMBERS).to_bytes(8, "little")
        case 4:
            del changed[random.randrange(len(changed) + 1) :]
        case _:
            if changed:
                changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    envelopes[at] = Spoken(bytes(changed[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")), body, attachments)


def _repeat(random: Random, envelopes: list[Spoken], at: int, _pool: Sequence[bytes]) -> None:
    envelopes.insert(random.randrange(len(envelopes) + 1), envelopes[at])


def _remove(_random: Random, envelopes: list[Spoken], at: int, _pool: Sequence[bytes]) -> None:
    if at or len(envelopes) > 1:
        del envelopes[at]


def _swap(random: Random, envelopes: list[Spoken], at: int, _pool: Sequence[bytes]) -> None:
    other = random.randrange(len(envelopes))
    envelopes[at], envelopes[other] = envelopes[other], envelopes[at]


def _attachments(random: Random, envelopes: list[Spoken], at: int, pool: Sequence[bytes]) -> None:
    header, body, _ = envelopes[at]
    frames = tuple(random.choice(pool)[: random.randrange(200)] for _ in range(random.choice((0, 1, 2, 1024))))
    envelopes[at] = Spoken(header, body, frames)


_CONVERSATION_CHANGES: tuple[Callable[[Random, list[Spoken], int, Sequence[bytes]], None], ...] = (
    *[_change_body] * 6,
    _foreign_body,
    _foreign_body,
    _change_header,
    _repeat,
    _remove,
    _swap,
    _attachments,
)
