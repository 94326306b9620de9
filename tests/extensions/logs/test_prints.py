"""An agent's buffer for printed output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from scaler.extensions.logs.prints import PrintBuffer
from scaler.protocol.messages import Printed
from scaler.worker.frames import Note, ToAgent

TASK, OTHER = b"t" * 16, b"o" * 16


def printed(task: bytes, text: bytes, *, is_stderr: bool) -> Note:
    return Note(ToAgent.PRINTED, text, task, is_stderr)


def gathered(story: Callable[[PrintBuffer], None]) -> list[Printed]:
    """Send output to an agent's print buffer, and return the lines that it forwarded without a request."""
    said: list[Printed] = []
    waiting: list[Callable[[Sequence[bytes]], object]] = []

    async def run() -> None:
        is_sent = asyncio.Event()

        def say(message: Printed) -> None:
            said.append(message)
            asyncio.get_running_loop().call_soon(is_sent.set)  # after callbacks scheduled earlier

        prints = PrintBuffer(asyncio.get_running_loop(), say, waiting)
        story(prints)
        async with asyncio.timeout(5):
            await is_sent.wait()
        assert not waiting
        prints.close()

    asyncio.run(run())
    return said


def test_output_within_a_moment_is_one_message() -> None:
    def story(prints: PrintBuffer) -> None:
        for number in range(1000):
            prints.add(printed(TASK, b"%d\n" % number, is_stderr=False))
            prints.add(printed(OTHER, b".", is_stderr=True))

    (message,) = gathered(story)
    assert (message.ids, message.are_stderr, message.truncated_bytes) == ([TASK, OTHER], [False, True], [0, 0])
    assert message.texts == [b"".join(b"%d\n" % number for number in range(1000)), b"." * 1000]


def test_only_the_tasks_own_output_is_forwarded_at_its_end() -> None:
    said: list[Printed] = []

    async def run() -> None:
        prints = PrintBuffer(asyncio.get_running_loop(), said.append, [])
        prints.add(printed(TASK, b"mine", is_stderr=False))
        prints.add(printed(OTHER, b"other", is_stderr=False))
        prints.flush([TASK, b"x" * 16])
        assert said == [Printed([TASK], [False], [0], [b"mine"])]
        prints.close()
        assert said[1:] == [Printed([OTHER], [False], [0], [b"other"])]

    asyncio.run(run())
