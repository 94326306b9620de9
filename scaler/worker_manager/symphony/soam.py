"""The product's library: where it comes from, and the message that carries calls and results."""

from __future__ import annotations

import importlib
import importlib.util
from array import array
from typing import Any, Protocol

from scaler.errors import ConfigError

MISSING = (
    "soamapi, the Python library of IBM Spectrum Symphony, cannot be imported: it is part of the product and in no "
    "package index. Install Symphony's client on this machine, source its profile (profile.platform), and put the "
    "directory of its Python API into PYTHONPATH"
)
_LIBRARY = "soamapi"


class Payload(Protocol):
    """A message with bytes in it."""

    data: bytes


def check_installed() -> None:
    """Tell whether there is a library, without loading it. Raises ConfigError."""
    if importlib.util.find_spec(_LIBRARY) is None:
        raise ConfigError(MISSING)


def load_library() -> Any:
    """Import the library. Raises ConfigError that says what to install."""
    try:
        return importlib.import_module(_LIBRARY)
    except ImportError as error:  # it is there, and a shared library of it is not, for example
        raise ConfigError(f"{MISSING} ({error})") from error


def payload_class(soamapi: Any) -> Any:
    """Return the class of messages that hold bytes; called with them, or without any for those that are to be read."""

    class BytesMessage(soamapi.Message):  # type: ignore[misc]
        def __init__(self, data: bytes = b"") -> None:
            super().__init__()
            self.data = data

        def on_serialize(self, stream: Any) -> None:
            items = array("b", self.data)
            stream.write_byte_array(items, 0, len(items))

        def on_deserialize(self, stream: Any) -> None:
            self.data = stream.read_byte_array("b").tobytes()

    return BytesMessage
