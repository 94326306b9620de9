"""Values as bytes: what travels between clients and processors. Nothing else in the platform looks into it."""

from scaler.serialization.arguments import (
    ArgumentOnly,
    ByReference,
    Collection,
    DependencyFailedError,
    dump_arguments,
    load_arguments,
)
from scaler.serialization.exceptions import dump_exception, load_exception
from scaler.serialization.pickling import Buffer, Parts, own_buffer, parts_of, size_of, to_payload
from scaler.serialization.values import (
    Divisible,
    Serializer,
    bind_serializer,
    dump_function,
    dump_retry_on,
    dump_serializer,
    dump_value,
    load_function,
    load_retry_on,
    load_serializer,
    load_value,
    name_of,
)

__all__ = [
    "ArgumentOnly",
    "Buffer",
    "ByReference",
    "Collection",
    "DependencyFailedError",
    "Divisible",
    "Parts",
    "Serializer",
    "bind_serializer",
    "dump_arguments",
    "dump_exception",
    "dump_function",
    "dump_retry_on",
    "dump_serializer",
    "dump_value",
    "load_arguments",
    "load_exception",
    "load_function",
    "load_retry_on",
    "load_serializer",
    "load_value",
    "name_of",
    "own_buffer",
    "parts_of",
    "size_of",
    "to_payload",
]
