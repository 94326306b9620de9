"""Output of offloaded tasks, recorded until a task's end."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator, Sequence

from scaler.head_tail import HeadTailBuffer
from scaler.worker.processor.capture import MAX_OUTPUT_BYTES, OMITTED_TEXT, TeedStreams, redirected_output

PRINTED_BYTES = 12 * 1024
"""Head and tail kept of each printed stream. Equals the scheduler's limit, so no text is truncated twice."""
_READ_BYTES = 64 * 1024

Texts = tuple[bytearray, bytearray]


@contextlib.contextmanager
def printed_output(texts: Texts) -> Iterator[None]:
    """Context manager that also records text printed by Python code: head and tail of a long text."""
    buffers = [HeadTailBuffer(PRINTED_BYTES, PRINTED_BYTES) for _ in texts]

    def keep(is_stderr: bool, text: str) -> None:
        buffers[is_stderr].add(text.encode("utf-8", "backslashreplace"))

    try:
        with TeedStreams(keep):
            yield
    finally:
        for text, buffer in zip(texts, buffers, strict=True):
            text.extend(buffer.text())


@contextlib.contextmanager
def recorded_output(texts: Texts) -> Iterator[None]:
    """Context manager that records up to MAX_OUTPUT_BYTES of descriptors 1 and 2 each, and discards the rest."""
    over, end = os.pipe()
    with contextlib.ExitStack() as after:
        after.callback(os.close, over)
        with redirected_output() as readers:
            thread = threading.Thread(target=_record, args=(readers, over, texts), name="recorded-output", daemon=True)
            thread.start()
            for reader in readers:
                after.callback(os.close, reader)
            after.callback(thread.join)
            after.callback(os.close, end)
            yield


def _record(readers: Sequence[int], over: int, texts: Texts) -> None:
    poll = select.poll()
    for descriptor in (*readers, over):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ready == [over]:
            return
        for reader, text in zip(readers, texts, strict=True):
            if reader in ready:
                read = os.read(reader, _READ_BYTES)
                if not read:
                    poll.unregister(reader)
                elif len(text) <= MAX_OUTPUT_BYTES:  # otherwise, the omission is already marked
                    text.extend(read)
                    if len(text) > MAX_OUTPUT_BYTES:
                        text[MAX_OUTPUT_BYTES:] = OMITTED_TEXT
