"""The agent's core: which processor works on which attempt, and what the scheduler is told. Pure.

An attempt is in the queue, or fed to one processor; a processor works through what it was fed in order. What it has not
read can be taken back at any time, without its co-operation. So only the attempt that was running is charged for a
death, and nothing that has not started is ever lost or started twice.

Every input is a method; `settle` comes once after the inputs of a turn. Laws, checked by `check`:
an attempt is in one place; the fed are with their processor; at most `slots` processors are active; every attempt that
came leaves in exactly one Done or Returned(started=False), unless the scheduler has forgotten this worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaler.protocol.messages import STARTED_AFTER_SECONDS, ForgetFunctions, Outcome, Recall, Run, Started, Welcome
from scaler.worker.attempts import Attempt, Library, Queue
from scaler.worker.contact import Contact, Silence
from scaler.worker.endings import Endings
from scaler.worker.feeding import Feeding
from scaler.worker.frames import Results, pack_forget
from scaler.worker.hands import Hands
from scaler.worker.leaving import Leaving
from scaler.worker.outbox import Level, Outbox
from scaler.worker.pool import MAX_SUSPENDED, SPARE_SECONDS, Doom, Pool, Processor, Standing

MAX_FAILED_STARTS = 3
"""Processors that fail one after the other before they are ready; then the agent ends."""
BUSY_TICK_SECONDS = 0.01
IDLE_TICK_SECONDS = 0.5
LATE_RESULT_SECONDS = 0.005
"""Results that wait in a page behind a task that has run for so long are fetched."""
PAUSE_AFTER_SECONDS = 0.1
PAUSE_SECONDS = 1.0
"""A suspended processor is paused for so long at a time: its own threads may have something to send."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core takes from the worker's configuration."""

    slots: int
    queue_size: int
    task_timeout_seconds: float
    death_timeout_seconds: float
    hard_suspend: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """The agent is to end. text: why, for people. is_silence: nothing was heard of the scheduler for too long."""

    exit_code: int
    text: str
    is_silence: bool = False


class AgentCore:
    """See the module."""

    def __init__(self, settings: Settings, hands: Hands, now: float) -> None:
        self._settings = settings
        self._hands = hands
        self._library = Library(settings.task_timeout_seconds)
        self._queue = Queue()
        self._contact = Contact(now, settings.death_timeout_seconds)
        self._silence = Silence.NONE
        self._leaving = Leaving()
        self._failed_starts = 0
        self._known_to_scheduler = False
        self.pool = Pool(settings.slots)
        self.outbox = Outbox()
        self._feeding = Feeding(self.pool, self._queue, self._library, hands, self.outbox)
        self._endings = Endings(self.pool, self._queue, self._feeding, hands, self.outbox)
        self.ending: Ending | None = None
        self.wake_at = now
        """When `tick` is due."""

    # -- what the scheduler says -----------------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome, storage_address: str, now: float) -> None:
        """The scheduler opened a new session. If there was one before, it knows nothing of it any more."""
        if self._known_to_scheduler:
            self._forget_everything()
            self.outbox.note(Level.WARNING, "the scheduler has forgotten this worker: it starts afresh")
        self._known_to_scheduler = True
        self._leaving.welcomed(self.outbox, now)
        self._contact.welcomed(welcome.lease_seconds, now)
        self._silence = Silence.NONE
        self._feeding.use_storage(storage_address)

    def heard(self, now: float) -> None:
        """The scheduler is alive: anything came from it."""
        self._contact.heard(now)
        if self._silence is not Silence.NONE:
            self._silence = self._contact.look(now)

    def run(self, message: Run, now: float) -> None:
        """Take in attempts."""
        library = self._library
        for identifier, payload in message.functions:
            library.definitions[identifier] = payload
        queue = self._queue
        attempts = queue.attempts
        limit = self._settings.slots * (self._settings.queue_size + 1) + len(self.pool.suspended())
        refused: list[Attempt] = []
        for group in message.groups:
            known, evicted = library.know(group.spec)
            if evicted is not None:
                self._feeding.forget([evicted], ())
            rank = queue.rank(group.spec)
            inputs = group.inputs or [()] * len(group.ids)
            for identifier, number, payload, values in zip(
                group.ids, group.attempts, group.payloads, inputs, strict=True
            ):
                item = Attempt(identifier, number, known, payload, values, rank)
                if self._leaving.text or len(attempts) >= limit or identifier in attempts:
                    refused.append(item)
                else:
                    queue.add(item)
        self.outbox.returned(refused, started=False)
        if len(queue):
            self.wake_at = min(self.wake_at, now + BUSY_TICK_SECONDS)

    def undefine(self, message: ForgetFunctions) -> None:
        self._feeding.forget(self._library.undefine(message.ids), message.ids)

    def recall(self, message: Recall, now: float) -> None:
        """Give attempts back; kill those that run when the message says so."""
        unstarted: list[Attempt] = []
        fed: dict[int, list[Attempt]] = {}
        for identifier, number in zip(message.ids, message.attempts, strict=True):
            item = self._queue.attempts.get(identifier)
            if item is None or item.attempt != number:
                continue  # its Done is on its way
            if item.processor:
                fed.setdefault(item.processor, []).append(item)
            else:
                self._queue.remove(item)
                unstarted.append(item)
        goes_on: list[Attempt] = []
        for number, items in fed.items():
            self._feeding.take_back(self.pool.processors[number])
            for item in items:
                if not item.processor:
                    self._queue.remove(item)
                    unstarted.append(item)
                elif not message.kill:
                    goes_on.append(item)
                else:
                    self._endings.kill(self.pool.processors[number], item, Doom(Outcome.CANCELLED, "cancelled"), now)
        self.outbox.returned(unstarted, started=False)
        self.outbox.returned([item for item in goes_on if self._endings.holds(item)], started=True)

    def drain(self, text: str) -> None:
        """Start nothing more, give back what has not started, and end when the rest is done."""
        self._leaving.told(text)
        self._give_back()

    def stop(self, text: str, grace_seconds: float, now: float) -> None:
        """As `drain`, by another's wish; what still runs after the grace is killed and given back."""
        look_again = self._leaving.begin(text, self.outbox, grace_seconds, self._known_to_scheduler, now)
        self._give_back()
        self.wake_at = min(self.wake_at, look_again)

    def shutdown(self, text: str) -> None:
        """End at once, with all that runs."""
        self.ending = Ending(0, text or "the cluster was shut down")

    # -- what processors say ---------------------------------------------------------------------------------------

    def started(self, number: int) -> None:
        """A processor is ready for tasks."""
        processor = self.pool.processors.get(number)
        if processor is not None:
            processor.ready = True
            self._failed_starts = 0

    def results(self, number: int, batch: Results, sent: bool, now: float) -> None:
        """Results of a processor. sent: they came as a message, and were not only read from its page."""
        processor = self.pool.processors.get(number)
        if processor is not None:
            self._endings.results(processor, batch, sent, now)

    def blocked(self, number: int, now: float) -> None:
        """The running task of a processor waits for tasks of its own: its slot can be lent."""
        processor = self.pool.processors.get(number)
        if processor is None or processor.standing is not Standing.ACTIVE:
            return
        if len(self.pool.suspended()) >= MAX_SUSPENDED:
            text = f"{MAX_SUSPENDED} tasks wait for nested ones here (MAX_SUSPENDED): no slot is lent"
            self.outbox.note(Level.WARNING, text, processor.fed[0].id if processor.fed else b"")
            return
        processor.stand(Standing.SUSPENDED, now)
        processor.yielding = False
        self._feeding.take_back(processor)
        if processor.fed:
            self.outbox.suspended(processor.fed[0], True)
        self.wake_at = min(self.wake_at, now + PAUSE_AFTER_SECONDS)

    def unblocked(self, number: int, now: float) -> None:
        """The wait is over; the processor waits until it is granted a slot."""
        processor = self.pool.processors.get(number)
        if processor is None:
            return
        if processor.standing is Standing.SUSPENDED:
            processor.stand(Standing.WAITING, now)
        elif processor.standing is Standing.ACTIVE:
            self._hands.grant(number)

    def nested_traffic(self, number: int, now: float) -> None:
        """A nested client of this processor got or said something."""
        processor = self.pool.processors.get(number)
        if processor is not None and processor.standing is Standing.SUSPENDED:
            processor.since = now
            self._pause(processor, False)

    def start_failed(self, number: int, text: str) -> None:
        """A processor could not be made ready; its exit follows."""
        processor = self.pool.processors.get(number)
        if processor is None:
            return
        processor.stand(Standing.ENDING, processor.since)
        processor.doom = Doom(Outcome.NOT_STARTED, "")
        self._count_failed_start(text)

    def nonsense(self, number: int, text: str) -> None:
        """A processor said something that makes no sense."""
        processor = self.pool.processors.get(number)
        if processor is not None:
            self._endings.distrust(processor, text)

    def exited(self, number: int, how: str, now: float) -> None:
        """A processor is gone. how: exit code or signal, and its last words, for people."""
        processor = self.pool.processors.get(number)
        if processor is None:
            return
        if not processor.ready and processor.doom is None:
            self._count_failed_start(how)
        self._endings.exited(processor, how, now)

    # -- once per turn ---------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Bring slots and work together: call it after the inputs of a turn."""
        if self.ending is not None:
            return
        if self._leaving.text:
            self.outbox.returned(list(self._queue.drain()), started=False)
            if not self._queue.attempts and self._leaving.is_settled(now):
                self.ending = Ending(0, self._leaving.text)
                return
        self._feeding.fill(now)
        if len(self._queue) and self._silence is Silence.NONE:
            self._feeding.feed()
            self.wake_at = min(self.wake_at, now + BUSY_TICK_SECONDS)
        if self._settings.slots > 1 and self._silence is Silence.NONE and self._feeding.share(now):
            self.wake_at = min(self.wake_at, now + BUSY_TICK_SECONDS)

    def tick(self, now: float) -> None:
        """Do what time asks for; it is due at `wake_at`. Call `settle` after it."""
        self.wake_at = now + IDLE_TICK_SECONDS
        self._judge_silence(now)
        for processor in self.pool:
            if processor.fed:
                self._watch(processor, now)
            if processor.standing is Standing.SPARE and now - processor.since > SPARE_SECONDS:
                processor.stand(Standing.ENDING, now)
                self._hands.end(processor.number)
            elif processor.standing is Standing.SUSPENDED and self._settings.hard_suspend:
                self._rest(processor, now)
        if now >= self._leaving.deadline:
            self._end_the_rest()

    @property
    def queued(self) -> int:
        """Attempts that have not started, as far as is known without asking."""
        return len(self._queue) + sum(max(0, len(each.fed) - 1) for each in self.pool)

    def running(self, number: int) -> tuple[bytes, float] | None:
        """Return the id of the task that a processor runs and when it began (monotonic seconds), if it runs one."""
        processor = self.pool.processors.get(number)
        if processor is None:
            return None
        snapshot = self._hands.snapshot(number)
        place = snapshot.finished - processor.resulted
        if snapshot.begun > snapshot.finished and 0 <= place < len(processor.fed):
            return processor.fed[place].id, snapshot.begun_at
        return None

    def check(self) -> None:
        """Assert the laws that this module's head states."""
        held = self._queue.attempts
        with_processors = [item for each in self.pool for item in each.fed]
        assert len(held) == len(self._queue) + sum(held.get(item.id) is item for item in with_processors)
        for processor in self.pool:
            assert all(item.processor == processor.number for item in processor.fed)
        assert len(self.pool.active()) <= self.pool.slots

    # -- ends ------------------------------------------------------------------------------------------------------

    def _watch(self, processor: Processor, now: float) -> None:
        """Look at a busy processor: time limits, and results that wait behind a long task."""
        snapshot = self._hands.snapshot(processor.number)
        if snapshot.begun > processor.resulted and snapshot.begun > snapshot.finished:
            elapsed = now - snapshot.begun_at
            if snapshot.finished > processor.resulted and elapsed > LATE_RESULT_SECONDS:
                self._endings.collect(processor, now)
                if not processor.fed or processor.standing is Standing.ENDING:
                    return
            item = processor.fed[0]
            limit = item.spec.limit_seconds
            if limit and elapsed >= limit and snapshot.finished == processor.resulted:
                self._feeding.take_back(processor)
                text = f"the task ran longer than its time limit of {limit:g} s and was ended"
                self._endings.kill(processor, item, Doom(Outcome.TIMED_OUT, text), now)
                return
            pause = max(BUSY_TICK_SECONDS, elapsed * 0.1) if len(processor.fed) > 1 else IDLE_TICK_SECONDS
            if limit:
                pause = min(pause, max(limit - elapsed, 0.0) + 0.001)
            if elapsed < STARTED_AFTER_SECONDS:
                pause = min(pause, STARTED_AFTER_SECONDS - elapsed + 0.001)
            elif not item.said_started and snapshot.finished == processor.resulted:
                item.said_started = True
                self.outbox.send(Started([item.id]))
        else:
            pause = BUSY_TICK_SECONDS
        self.wake_at = min(self.wake_at, now + pause)

    def _rest(self, processor: Processor, now: float) -> None:
        """Pause a suspended processor most of the time."""
        age = now - processor.since
        if not processor.paused and age > PAUSE_AFTER_SECONDS:
            processor.since = now
            self._pause(processor, True)
        elif processor.paused and age > PAUSE_SECONDS:
            processor.since = now
            self._pause(processor, False)
        self.wake_at = min(self.wake_at, now + PAUSE_AFTER_SECONDS)

    def _pause(self, processor: Processor, paused: bool) -> None:
        if processor.paused is not paused:
            processor.paused = paused
            self._hands.pause(processor.number, paused)

    def _judge_silence(self, now: float) -> None:
        before = self._silence
        silence = self._silence = self._contact.look(now)
        if silence is before:
            return
        if silence is not Silence.NONE:
            self.outbox.note(Level.WARNING, f"no word from the scheduler: {silence.name.lower().replace('_', ' ')}")
            for processor in self.pool:
                self._feeding.take_back(processor)
        if silence is Silence.KILL_ONCE:
            text = "the worker lost contact with the scheduler and ended the task, which may not run twice"
            for processor in self.pool:
                for item in [item for item in processor.fed if item.spec.retries == 0]:
                    self._endings.kill(processor, item, Doom(Outcome.WORKER_LOST, text), now)
        elif silence is Silence.DEATH:
            seconds = self._settings.death_timeout_seconds
            why = f"no contact with the scheduler for {seconds:g} s (death_timeout_seconds)"
            self.ending = Ending(1, why, is_silence=True)

    def _give_back(self) -> None:
        for processor in self.pool:
            if processor.fed:
                self._feeding.take_back(processor)
        self.outbox.returned(list(self._queue.drain()), started=False)

    def _end_the_rest(self) -> None:
        """The grace is over: kill what runs and give it back, charged to nobody."""
        text = f"the worker was told to end ({self._leaving.text}) while the task ran"
        for processor in self.pool:
            if processor.fed and processor.standing is not Standing.ENDING:
                processor.standing = Standing.ENDING
                processor.doom = Doom(Outcome.NOT_STARTED, text)
                self._hands.kill(processor.number)

    def _forget_everything(self) -> None:
        for processor in self.pool:
            if processor.fed:
                processor.standing = Standing.ENDING
                processor.doom = Doom(None, "")
                self._feeding.take_back(processor)
                self._hands.kill(processor.number)
            elif processor.standing is not Standing.ENDING:
                self._hands.tell(processor.number, pack_forget(list(processor.definitions), list(processor.specs)))
                processor.definitions.clear()
                processor.specs.clear()
        for _ in self._queue.drain():
            pass
        self._queue.attempts.clear()
        self._library.clear()

    def _count_failed_start(self, text: str) -> None:
        self._failed_starts += 1
        self.outbox.note(Level.ERROR, f"a processor could not start: {text}")
        if self._failed_starts >= MAX_FAILED_STARTS:
            self.ending = Ending(1, f"{self._failed_starts} processors in a row could not start: {text}")
