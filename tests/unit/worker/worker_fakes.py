"""Processors that do what a test says: the core's hands without processes, sockets and time."""

from __future__ import annotations

from scaler.protocol.messages import Outcome
from scaler.worker.frames import TASK, ResultRow, Results, ToProcessor, pack_task
from scaler.worker.page import Snapshot


class FakeProcessor:
    def __init__(self) -> None:
        self.unread: list[bytes] = []
        self.room = 10_000
        self.running: tuple[bytes, int] | None = None
        self.begun = 0
        self.begun_at = 0.0
        self.finished = 0
        self.batch = 0
        self.page: list[ResultRow] = []
        self.sent: list[Results] = []
        self.reads_while_taken: int | None = None
        self.granted = 0
        self.paused = False
        self.killed = False
        self.ended = False
        self.released = False
        self.told: list[ToProcessor] = []

    def begin(self, now: float) -> None:
        """Read on to the next task and begin it."""
        datagram = self.unread.pop(0)
        _, attempt, _, task, _, _ = TASK.unpack_from(datagram)
        self.running = (task, attempt)
        self.begun += 1
        self.begun_at = now

    def finish(self, outcome: Outcome = Outcome.SUCCESS, duration_us: int = 1000) -> None:
        """End the running task; its result stays in the page."""
        assert self.running is not None
        task, attempt = self.running
        self.running = None
        self.finished += 1
        self.page.append((task, attempt, outcome, 0, duration_us, 0, 0, 1))

    def flush(self) -> Results:
        """Send what is in the page."""
        results = self.results()
        self.page = []
        self.batch += 1
        return results

    def results(self) -> Results:
        return Results(self.batch, list(self.page), memoryview(b"." * len(self.page)))

    def tasks(self) -> list[bytes]:
        return [TASK.unpack_from(datagram)[3] for datagram in self.unread]


class FakeHands:
    def __init__(self) -> None:
        self.processors: dict[int, FakeProcessor] = {}

    def __getitem__(self, number: int) -> FakeProcessor:
        return self.processors[number]

    def spawn(self, number: int) -> None:
        assert number not in self.processors
        self.processors[number] = FakeProcessor()

    def feed(self, number: int, task: bytes) -> bool:
        processor = self.processors[number]
        if len(processor.unread) >= processor.room:
            return False
        processor.unread.append(task)
        return True

    def tell(self, number: int, datagram: bytes) -> bool:
        self.processors[number].told.append(ToProcessor(datagram[0]))
        return True

    def take_back(self, number: int) -> list[bytes]:
        processor = self.processors[number]
        taken = processor.tasks()
        processor.unread = []
        place = processor.reads_while_taken
        if place is not None and place < len(taken) and processor.running is None and not processor.killed:
            # It reads one in the middle of this.
            processor.reads_while_taken = None
            processor.unread = [pack_task(0, taken.pop(place), 1, b"", ())]
            processor.begin(processor.begun_at)
        return taken

    def collect(self, number: int) -> list[tuple[Results, bool]]:
        processor = self.processors[number]
        found = [(results, True) for results in processor.sent]
        processor.sent = []
        if processor.page:
            found.append((processor.results(), False))
        return found

    def snapshot(self, number: int) -> Snapshot:
        processor = self.processors[number]
        return Snapshot(processor.begun, processor.begun_at, processor.finished)

    def kill(self, number: int) -> None:
        self.processors[number].killed = True

    def end(self, number: int) -> None:
        self.processors[number].ended = True

    def grant(self, number: int) -> None:
        self.processors[number].granted += 1

    def pause(self, number: int, paused: bool) -> None:
        self.processors[number].paused = paused

    def release(self, number: int) -> None:
        self.processors[number].released = True
