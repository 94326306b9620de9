"""Use a custom serializer for functions, arguments, and results.

It encodes integers in 8 bytes and pickles all other values. The first byte identifies the format.

Prints::

    42
    [1, 2, 3]
"""

import struct
from typing import Any

import cloudpickle

from scaler import Client, SchedulerClusterCombo, Serializer


class CompactNumbers(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        if type(obj) is int and -(2**63) <= obj < 2**63:
            return b"n" + struct.pack("<q", obj)
        return b"p" + cloudpickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        if payload[:1] == b"n":
            return struct.unpack("<q", payload[1:])[0]
        return cloudpickle.loads(payload[1:])


def add(left, right):
    return left + right


with (
    SchedulerClusterCombo(n_workers=1) as cluster,
    Client(address=cluster.get_address(), serializer=CompactNumbers()) as client,
):
    print(client.submit(add, 40, 2).result())
    print(client.submit(add, [1, 2], [3]).result())
