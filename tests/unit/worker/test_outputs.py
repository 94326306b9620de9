"""Output of tasks with `stream_output` is forwarded up to a limit, and the omitted part is counted."""

from __future__ import annotations

import asyncio
import os

import pytest

from scaler.worker.agent.processors import OutputPipes
from scaler.worker.processor.capture import CHUNK_BYTES, MAX_OUTPUT_BYTES

TASK = b"t" * 16
CUT = b"\n... more is left out ...\n"


@pytest.mark.parametrize("ahead", [0, 1], ids=["pieces fill the limit exactly", "pieces go beyond the limit"])
def test_omission_is_marked_once_wherever_the_chunks_end(ahead: int) -> None:
    passed = bytearray()

    async def story() -> None:
        outputs = OutputPipes(asyncio.get_running_loop(), lambda output: passed.extend(output.text))
        (out, out_writer), (err, err_writer) = os.pipe(), os.pipe()
        outputs.open(TASK, (out, err))
        for piece in [b"y" * ahead, *[b"x" * CHUNK_BYTES] * (MAX_OUTPUT_BYTES // CHUNK_BYTES)]:
            os.write(out_writer, piece)
            outputs.drain(TASK)
        assert passed.endswith(CUT) == bool(ahead)
        for _ in range(3):
            os.write(out_writer, b"more")
            outputs.drain(TASK)
        os.close(out_writer)
        os.close(err_writer)
        outputs.drain(TASK)
        assert not outputs.pipes

    asyncio.run(story())
    assert len(passed) == MAX_OUTPUT_BYTES + len(CUT)
    assert passed.endswith(CUT)
