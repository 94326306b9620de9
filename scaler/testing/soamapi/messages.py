"""Messages, streams, and exceptions, used by clients and services of Symphony."""

from __future__ import annotations

from array import array

_KINDS = ("b", "B")


class SoamException(Exception):  # noqa: N818 (the name is the product's, as all here)
    """Root of the product's exceptions."""

    def __init__(self, text: str = "", embedded: BaseException | None = None) -> None:
        super().__init__(text)
        self._embedded = embedded

    def get_embedded_exception(self) -> BaseException | None:
        return self._embedded


class FailureException(SoamException):
    """Thrown by a service for a task that may be retried."""


class FatalException(SoamException):
    """Thrown by a service for a task that has failed."""


class OutputStream:
    """Stream to which a message serializes itself."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write_byte_array(self, data: array[int], offset: int, count: int) -> None:
        if not isinstance(data, array) or data.typecode not in _KINDS:
            raise TypeError("write_byte_array takes an array with the type 'b' or 'B'")
        self._parts.append(count.to_bytes(8, "little") + data[offset : offset + count].tobytes())

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class InputStream:
    """Stream from which a message deserializes itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read_byte_array(self, kind: str) -> array[int]:
        if kind not in _KINDS:
            raise TypeError("read_byte_array takes the type 'b' or 'B'")
        count = int.from_bytes(self._data[self._at : self._at + 8], "little")
        start = self._at + 8
        if self._at + 8 > len(self._data) or start + count > len(self._data):
            raise SoamException("the message ends before the value that is read from it")
        self._at = start + count
        return array(kind, self._data[start : self._at])


class Message:
    """Base class of users' messages."""

    def on_serialize(self, stream: OutputStream) -> None:
        raise NotImplementedError

    def on_deserialize(self, stream: InputStream) -> None:
        raise NotImplementedError


def dump(message: Message) -> bytes:
    stream = OutputStream()
    message.on_serialize(stream)
    return stream.bytes()


def load(message: Message, data: bytes) -> None:
    message.on_deserialize(InputStream(data))
