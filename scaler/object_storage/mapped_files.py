"""Stores many objects in an unnamed, mapped file on disk, whose space is freed with its last reference. Objects share a
mapping, because Linux allows 65,530 mappings per process."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence


def write_segment(directory: str, objects: Sequence[Sequence[memoryview]]) -> list[list[memoryview]]:
    """Write the parts of objects (at least one byte) and return read-only mapped views. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        size = sum(part.nbytes for each in objects for part in each)
        # Allocate first, so that a full disk raises an error here and never a SIGBUS in the mapping.
        os.posix_fallocate(file.fileno(), 0, size)
        for part in (part for each in objects for part in each):
            rest = part
            while rest.nbytes:
                rest = rest[file.write(rest) :]
        whole = map_file(file.fileno(), size, mmap.MAP_SHARED).toreadonly()
    found, at = [], 0
    for each in objects:
        views = []
        for part in each:
            views.append(whole[at : at + part.nbytes])
            at += part.nbytes
        found.append(views)
    return found


def map_file(descriptor: int, size: int, flags: int) -> memoryview:
    """Map a file until its last view is gone. Unlike `mmap.mmap`, keeps no file descriptor. Raises OSError."""
    protection = mmap.PROT_READ if flags & mmap.MAP_SHARED else mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc_mmap(None, size, protection, flags, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: threads may still read the memory, and the kernel unmaps it anyway.
    weakref.finalize(memory, _libc_munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


if sys.platform != "win32":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc_mmap = _libc.mmap
    _libc_mmap.restype = ctypes.c_void_p
    _libc_mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    _libc_munmap = _libc.munmap
    _libc_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
