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

from scaler.errors import ProtocolError
from scaler.protocol.messages import Outcome, Recall, Run, Undefine, Welcome
from scaler.worker.attempts import Attempt, Library, Queue
from scaler.worker.contact import Contact, Silence
from scaler.worker.feeding import Feeding
from scaler.worker.frames import Results, pack_forget
from scaler.worker.hands import Hands
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
_MAX_OUTCOME = Outcome.OBJECT_LOST


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
    """The agent is to end. text: why, for people."""

    exit_code: int
    text: str


class AgentCore:
    """See the module."""

    def __init__(self, settings: Settings, hands: Hands, now: float) -> None:
        self._settings = settings
        self._hands = hands
        self._library = Library(settings.task_timeout_seconds)
        self._queue = Queue()
        self._contact = Contact(now, settings.death_timeout_seconds)
        self._silence = Silence.NONE
        self._draining = ""
        self._drain_deadline = float("inf")
        self._failed_starts = 0
        self._known_to_scheduler = False
        self.pool = Pool(settings.slots)
        self.outbox = Outbox()
        self._feeding = Feeding(self.pool, self._queue, self._library, hands, self.outbox)
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
        for identifier, payload in message.definitions:
            library.definitions[identifier] = payload
        queue = self._queue
        attempts = queue.attempts
        limit = self._settings.slots * (self._settings.queue_size + 1) + len(self.pool.suspended())
        refused: list[Attempt] = []
        for group in message.groups:
            known, evicted = library.know(group.spec)
            if evicted is not None:
                self._feeding.forget([evicted], ())
            inputs = group.inputs or [()] * len(group.ids)
            for identifier, number, payload, values in zip(
                group.ids, group.attempts, group.payloads, inputs, strict=True
            ):
                item = Attempt(identifier, number, known, payload, values)
                if self._draining or len(attempts) >= limit or identifier in attempts:
                    refused.append(item)
                else:
                    queue.add(item)
        self.outbox.returned(refused, started=False)
        if len(queue):
            self.wake_at = min(self.wake_at, now + BUSY_TICK_SECONDS)

    def undefine(self, message: Undefine) -> None:
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
                    self._kill(self.pool.processors[number], item, Doom(Outcome.CANCELLED, "cancelled"), now)
        self.outbox.returned(unstarted, started=False)
        self.outbox.returned([item for item in goes_on if self._holds(item)], started=True)

    def drain(self, text: str) -> None:
        """Start nothing more, give back what has not started, and end when the rest is done."""
        self._draining = self._draining or text or "drained"
        for processor in self.pool:
            if processor.fed:
                self._feeding.take_back(processor)
        self.outbox.returned(list(self._queue.drain()), started=False)

    def stop(self, text: str, grace_seconds: float, now: float) -> None:
        """As `drain`; what still runs after the grace is killed and given back."""
        self.drain(text)
        self._drain_deadline = min(self._drain_deadline, now + grace_seconds)
        self.wake_at = min(self.wake_at, self._drain_deadline)

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
        if processor is None:
            return
        batch = processor.unseen(batch, sent)
        fed = processor.fed
        attempts = self._queue.attempts
        done = self.outbox.done() if processor.doom is None or processor.doom.outcome is not None else None
        payloads = batch.payloads
        at = 0
        for identifier, attempt, outcome, _, duration_us, cpu_us, peak_bytes, size in batch.rows:
            if not fed or fed[0].id != identifier or fed[0].attempt != attempt or outcome > _MAX_OUTCOME:
                self._distrust(processor, "it reported a task that it does not have")
                return
            item = fed.popleft()
            processor.work_us -= item.cost_us
            processor.resulted += 1
            payload = bytes(payloads[at : at + size])
            at += size
            item.spec.pace.observe(duration_us)
            if done is None:
                continue
            del attempts[identifier]
            done.ids.append(identifier)
            done.attempts.append(attempt)
            done.outcomes.append(outcome)
            done.payloads.append(payload)
            done.duration_us.append(duration_us)
            done.cpu_us.append(cpu_us)
            done.peak_bytes.append(peak_bytes)
        if not fed:
            processor.work_us = 0.0
            processor.since = now

    def blocked(self, number: int, now: float) -> None:
        """The running task of a processor waits for tasks of its own: its slot can be lent."""
        processor = self.pool.processors.get(number)
        if processor is None or processor.standing is not Standing.ACTIVE:
            return
        if len(self.pool.suspended()) >= MAX_SUSPENDED:
            self.outbox.note(
                Level.WARNING, f"{MAX_SUSPENDED} tasks wait for nested ones here (MAX_SUSPENDED): no slot is lent"
            )
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
            self._distrust(processor, text)

    def exited(self, number: int, how: str, now: float) -> None:
        """A processor is gone. how: exit code or signal, and its last words, for people."""
        processor = self.pool.processors.get(number)
        if processor is None:
            return
        self._collect(processor, now)
        self._feeding.take_back(processor)
        glance = self._hands.glance(number)
        if not processor.ready and processor.doom is None:
            self._count_failed_start(how)
        doom = processor.doom or Doom(Outcome.PROCESSOR_DIED, f"the processor that ran the task died: {how}")
        begun = glance.begun > processor.resulted
        if processor.doom is None and processor.standing is not Standing.ENDING:
            what = "while it ran a task" if begun and processor.fed else "while it was idle"
            self.outbox.note(Level.WARNING, f"processor {number} died {what}: {how}")
        if processor.fed and begun and doom.outcome is not None:
            item = processor.fed.popleft()
            del self._queue.attempts[item.id]
            self._died_with(item, doom)
        if doom.outcome is not None:
            self._queue.put_back(processor.fed)
        processor.fed.clear()
        del self.pool.processors[number]
        self._hands.release(number)

    # -- once per turn ---------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Bring slots and work together: call it after the inputs of a turn."""
        if self.ending is not None:
            return
        if self._draining:
            self.outbox.returned(list(self._queue.drain()), started=False)
            if not self._queue.attempts:
                self.ending = Ending(0, self._draining)
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
        if now >= self._drain_deadline:
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
        glance = self._hands.glance(number)
        place = glance.finished - processor.resulted
        if glance.begun > glance.finished and 0 <= place < len(processor.fed):
            return processor.fed[place].id, glance.begun_at
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

    def _kill(self, processor: Processor, item: Attempt, doom: Doom, now: float) -> None:
        """End the attempt that a processor runs; what it has not read was taken back before.

        A result that came first wins: then nobody is killed.
        """
        self._collect(processor, now)
        if not self._holds(item) or processor.standing is Standing.ENDING:
            return
        processor.stand(Standing.ENDING, now)
        processor.doom = doom
        self._hands.kill(processor.number)

    def _collect(self, processor: Processor, now: float) -> None:
        """Take in the results that are there. A processor that left nonsense is on its way out already, or is now."""
        try:
            for batch, sent in self._hands.collect(processor.number):
                self.results(processor.number, batch, sent, now)
        except ProtocolError as error:
            self._distrust(processor, str(error))

    def _distrust(self, processor: Processor, text: str) -> None:
        if processor.standing is Standing.ENDING:
            return
        self.outbox.note(Level.ERROR, f"processor {processor.number} is ended: {text}")
        self._feeding.take_back(processor)
        processor.stand(Standing.ENDING, processor.since)
        processor.doom = Doom(Outcome.PROCESSOR_DIED, f"the processor that ran the task was ended: {text}")
        self._hands.kill(processor.number)

    def _died_with(self, item: Attempt, doom: Doom) -> None:
        outcome = Outcome(doom.outcome or 0)
        if outcome is Outcome.NOT_STARTED and item.spec.retries == 0:
            outcome = Outcome.WORKER_LOST
        self.outbox.ended(item, outcome, doom.text)

    def _holds(self, item: Attempt) -> bool:
        return self._queue.attempts.get(item.id) is item

    def _watch(self, processor: Processor, now: float) -> None:
        """Look at a busy processor: time limits, and results that wait behind a long task."""
        glance = self._hands.glance(processor.number)
        if glance.begun > processor.resulted and glance.begun > glance.finished:
            elapsed = now - glance.begun_at
            if glance.finished > processor.resulted and elapsed > LATE_RESULT_SECONDS:
                self._collect(processor, now)
                if not processor.fed or processor.standing is Standing.ENDING:
                    return
            item = processor.fed[0]
            limit = item.spec.limit_seconds
            if limit and elapsed >= limit and glance.finished == processor.resulted:
                self._feeding.take_back(processor)
                text = f"the task ran longer than its time limit of {limit:g} s and was ended"
                self._kill(processor, item, Doom(Outcome.TIMED_OUT, text), now)
                return
            pause = max(BUSY_TICK_SECONDS, elapsed * 0.1) if len(processor.fed) > 1 else IDLE_TICK_SECONDS
            if limit:
                pause = min(pause, max(limit - elapsed, 0.0) + 0.001)
        else:
            pause = BUSY_TICK_SECONDS if processor.ready else 10 * BUSY_TICK_SECONDS
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
                    self._kill(processor, item, Doom(Outcome.WORKER_LOST, text), now)
        elif silence is Silence.DEATH:
            seconds = self._settings.death_timeout_seconds
            self.ending = Ending(1, f"no contact with the scheduler for {seconds:g} s (death_timeout_seconds)")

    def _end_the_rest(self) -> None:
        """The grace is over: kill what runs and give it back, charged to nobody."""
        text = f"the worker was told to end ({self._draining}) while the task ran"
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
