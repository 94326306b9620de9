"""What the scheduler is told of tasks that run elsewhere: what they wrote, and how long they have been running."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scaler.protocol.messages import Output, Printed, ProcessorStatus
from scaler.worker.agent.output import CHUNK_BYTES, whole_characters
from scaler.worker.attempts import Attempt
from scaler.worker.call import CallResult
from scaler.worker.frames import SpecFlag
from scaler.worker_manager.offload.outs import Out

MAX_PRINTED_BYTES = 64 * 1024
"""Of what a result says that its task printed: no far end of ours says more."""


def output_of(item: Attempt, result: CallResult) -> Iterator[Output | Printed]:
    """Yield what a task wrote: as it is to be shown at once, in pieces that end between characters, or to be kept."""
    is_shown = bool(item.spec.frame.flags & SpecFlag.STREAM_OUTPUT)
    for is_stderr, text in ((False, result.stdout), (True, result.stderr)):
        rest = bytes(text)
        if rest and not is_shown:
            yield Printed([item.id], [is_stderr], [0], [rest[:MAX_PRINTED_BYTES]])
            continue
        while rest:
            piece = rest[:CHUNK_BYTES]
            if len(piece) < len(rest):
                piece = piece[: whole_characters(piece)] or piece
            rest = rest[len(piece) :]
            yield Output(item.id, is_stderr, piece)


def statuses_of(outs: Iterable[Out], now: float) -> list[ProcessorStatus]:
    """Return each as a processor that runs it: nobody here knows what it uses there."""
    return [
        ProcessorStatus(
            pid=0,
            cpu_percent=0.0,
            rss_bytes=0,
            initialized=out.started_at is not None,
            suspended=False,
            running=out.item.id,
            running_seconds=now - (out.handed_at if out.started_at is None else out.started_at),
        )
        for out in outs
    ]
