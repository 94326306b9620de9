"""Large objects in memory that the storage's host shares: written once, mapped by every reader, copied by nobody.

An object lies in a memory file (`memfd_create`), which has no name: when the last process that has its descriptor or
a mapping of it ends, however it ends, nothing is left. It is sealed before anybody else gets it, so that neither its
size nor its bytes can change. A reader maps it privately: what it writes to, it gets a page of its own for.

How descriptors travel is in `descriptors.py`. Elsewhere than on Linux this module can be imported, and nothing more.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from scaler.object_storage.layout import cut

if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

MIN_SHARED_BYTES = 1024 * 1024
"""Smaller objects travel as frames: a descriptor and a mapping cost as much as their copies."""
_ALIGNMENT = 64
_MAX_VECTOR = 1024
"""Buffers that one call takes at most (IOV_MAX)."""
_MAP_NORESERVE = 0x4000


def is_supported() -> bool:
    """Tell whether this system can share memory: a 64-bit Linux."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and sys.maxsize > 2**32


class SharedMemory:
    """The parts of one object in a sealed memory file, whose descriptor is closed with the last reference to this."""

    __slots__ = ("__weakref__", "descriptor", "sizes")

    def __init__(self, descriptor: int, sizes: Sequence[int]) -> None:
        """Own a descriptor. Raises ValueError, and closes it, when it is not a sealed memory file of these parts."""
        self.descriptor = descriptor
        self.sizes = sizes
        size = os.fstat(descriptor).st_size
        if not size or size != _offsets(sizes)[-1] or not _is_sealed(descriptor):
            raise ValueError(f"descriptor {descriptor} is not the sealed memory of an object of {sum(sizes)} bytes")

    @classmethod
    def written(cls, parts: Sequence[memoryview]) -> SharedMemory:
        """Return a copy of these parts. Raises OSError when there is no memory or no descriptor for it."""
        sizes = [part.nbytes for part in parts]
        descriptor = os.memfd_create("scaler-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _write(descriptor, parts)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, sizes)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # bound early: as the interpreter ends, `os` may be gone

    def parts(self) -> list[memoryview]:
        """Return the parts in a new private mapping, which lasts as long as they do. They can be written to."""
        offsets = _offsets(self.sizes)
        whole = _map(self.descriptor, offsets[-1])
        return [whole[offset : offset + size] for offset, size in zip(offsets[:-1], self.sizes, strict=True)]

    def pieces(self) -> list[memoryview]:
        """Return the bytes as pieces for messages, read-only."""
        return [piece for message in cut([part.toreadonly() for part in self.parts()]) for piece in message]


def _write(descriptor: int, parts: Sequence[memoryview]) -> None:
    # Writing is nearly twice as fast as copying into a mapping, whose fresh pages would be zeroed first.
    left: deque[memoryview] = deque()
    end = 0
    for part in parts:
        padding = -end % _ALIGNMENT
        left.append(memoryview(bytes(padding)))
        left.append(part)
        end += padding + part.nbytes
    offset = 0
    while left:
        written = os.pwritev(descriptor, list(itertools.islice(left, _MAX_VECTOR)), offset)
        offset += written
        while left and written >= left[0].nbytes:
            written -= left.popleft().nbytes
        if written:
            left[0] = left[0][written:]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last one ends."""
    offsets = []
    end = 0
    for size in sizes:
        start = end + -end % _ALIGNMENT
        offsets.append(start)
        end = start + size
    return [*offsets, end]


def _is_sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False  # a file of another kind, which has no seals


def _map(descriptor: int, size: int) -> memoryview:
    """Map a memory file privately. Raises OSError.

    `mmap.mmap` keeps a descriptor for each mapping: a thousand results would leave a process without any.
    """
    address = _libc_mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_NORESERVE, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: threads may still use it then, and the kernel unmaps it anyway.
    weakref.finalize(memory, _libc_munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc_mmap = _libc.mmap
    _libc_mmap.restype = ctypes.c_void_p
    _libc_mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    _libc_munmap = _libc.munmap
    _libc_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
