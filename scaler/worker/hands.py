"""What the agent's core can do to processors. The shell does it with sockets and signals, tests with a fake."""

from __future__ import annotations

from typing import Protocol

from scaler.worker.frames import Results
from scaler.worker.page import Snapshot


class Hands(Protocol):
    """Every processor is named by its number. None of this waits, and none of it fails because a processor is gone."""

    def spawn(self, number: int) -> None:
        """Begin to make a processor."""

    def feed(self, number: int, task: bytes) -> bool:
        """Put a TASK datagram at the end of what the processor will run. False: there is no room for it now."""

    def tell(self, number: int, datagram: bytes) -> bool:
        """Tell the processor what tasks refer to: it reads that before any task fed later. False: there is no room."""

    def take_back(self, number: int) -> list[bytes]:
        """Take all tasks that the processor has not read; from now on it finds none. Returns their ids, in order.

        The processor may read one in the middle of it, so these are not always the last ones that it was fed.
        """

    def collect(self, number: int) -> list[tuple[Results, bool]]:
        """Return the results that have come, and those that lie in the page; True with those that were sent."""

    def snapshot(self, number: int) -> Snapshot:
        """Tell what the processor does at this moment."""

    def kill(self, number: int) -> None:
        """End the processor at once; its exit will be reported."""

    def end(self, number: int) -> None:
        """Have an idle processor end; its exit will be reported."""

    def grant(self, number: int) -> None:
        """Tell a processor that waits for a slot that it has one."""

    def pause(self, number: int, paused: bool) -> None:
        """Stop or continue the whole process."""

    def release(self, number: int) -> None:
        """Free what belongs to a processor that has exited."""
