"""The offload agent's core: which attempts are handed on to the executor, and what the scheduler is told. Pure.

It is to the scheduler what a worker's core is (`scaler.worker.core`), and keeps the same promises. An attempt is
*queued* here, *out* with the executor, or *arriving*: its result is here, and a large value on its way to the storage.
Nobody can tell whether what is out has begun, so it counts as begun: it goes on when it is recalled, unless it is to be
killed. What the executor did not take goes back into the queue, and nobody is charged.

Every input is a method; `settle` comes once after the inputs of a turn. Laws, checked by `check`:
an attempt is in one place; at most `slots` are out; every attempt that came leaves in exactly one Done or
Returned(started=False), unless the scheduler has forgotten this worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaler.protocol.messages import ForgetFunctions, Outcome, Recall, Run, Started, Welcome
from scaler.worker.attempts import Attempt, Library, Queue
from scaler.worker.contact import Contact, Silence
from scaler.worker.core import IDLE_TICK_SECONDS, Ending
from scaler.worker.executor import CallKey
from scaler.worker.leaving import Leaving
from scaler.worker.outbox import Level, Outbox
from scaler.worker_manager.offload.outs import Out, Outs
from scaler.worker_manager.offload.setbacks import Setbacks

_NOT_QUEUED = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core takes from the agent's configuration."""

    slots: int
    queue_size: int
    task_timeout_seconds: float
    death_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class HandOn:
    """Give an attempt to the executor. function and serializer are payloads; no serializer: the built-in one."""

    item: Attempt
    function: bytes
    serializer: bytes


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Have the executor end this attempt, or do not give it to it any more."""

    item: Attempt


Command = HandOn | Withdraw


class OffloadCore:
    """See the module."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self._library = Library(settings.task_timeout_seconds)
        self._queue = Queue()
        self._out = Outs()
        self._arriving: dict[bytes, Attempt] = {}
        self._contact = Contact(now, settings.death_timeout_seconds)
        self._silence = Silence.NONE
        self._leaving = Leaving()
        self._known_to_scheduler = False
        self._has_news = False
        """Attempts have come since the executor did not take some."""
        self.setbacks = Setbacks()
        self._commands: list[Command] = []
        self.outbox = Outbox()
        self.ending: Ending | None = None
        self.wake_at = now
        """When `tick` is due."""

    # -- what the scheduler says -----------------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome, now: float) -> None:
        """The scheduler opened a new session. If there was one before, it knows nothing of it any more.

        What is out would then come again under the same names, beside itself: it is ended, and a new agent must take
        over. This one stays until it has given back what the scheduler sends it meanwhile, so that nobody is charged.
        """
        if self._known_to_scheduler:
            text = "the scheduler has forgotten this worker"
            if self._out:
                self._commands += [Withdraw(out.item) for out in self._out.all()]
                self._out.clear()
                leaves = f"{text}, whose tasks were still out: another one must take its place"
                self._leaving.begin(leaves, self.outbox, 0.0, False, now)
            else:
                self.outbox.note(Level.WARNING, f"{text}: it starts afresh")
            self._queue = Queue()
            self._arriving.clear()
            self._library.clear()
        self._known_to_scheduler = True
        self._leaving.welcomed(self.outbox, now)
        self._contact.welcomed(welcome.lease_seconds, now)
        self._silence = Silence.NONE

    def heard(self, now: float) -> None:
        """The scheduler is alive: anything came from it."""
        self._contact.heard(now)
        if self._silence is not Silence.NONE:
            self._silence = self._contact.look(now)

    def run(self, message: Run) -> None:
        """Take in attempts."""
        library = self._library
        for identifier, payload in message.functions:
            library.definitions[identifier] = payload
        attempts = self._queue.attempts
        limit = self._settings.slots * (self._settings.queue_size + 1)
        refused: list[Attempt] = []
        for group in message.groups:
            known, _ = library.know(group.spec)
            rank = self._queue.rank(group.spec)
            inputs = group.inputs or [()] * len(group.ids)
            for identifier, number, payload, values in zip(
                group.ids, group.attempts, group.payloads, inputs, strict=True
            ):
                item = Attempt(identifier, number, known, payload, values, rank)
                if self._leaving.text or len(attempts) >= limit or identifier in attempts:
                    refused.append(item)
                else:
                    self._queue.add(item)
                    self._has_news = True
        self.outbox.returned(refused, started=False)

    def undefine(self, message: ForgetFunctions) -> None:
        self._library.undefine(message.ids)

    def recall(self, message: Recall) -> None:
        """Give attempts back; have those that are out ended when the message says so."""
        unstarted: list[Attempt] = []
        goes_on: list[Attempt] = []
        for identifier, number in zip(message.ids, message.attempts, strict=True):
            item = self._queue.attempts.get(identifier)
            if item is None or item.attempt != number or identifier in self._arriving:
                continue  # its Done is on its way
            if identifier not in self._out:
                self._queue.remove(item)
                unstarted.append(item)
            elif message.kill:
                self._end(item, Outcome.CANCELLED, "cancelled")
            else:
                goes_on.append(item)
        self.outbox.returned(unstarted, started=False)
        self.outbox.returned(goes_on, started=True)

    def drain(self, text: str) -> None:
        """Hand nothing more on, give back what is queued, and end when the rest is done."""
        self._leaving.told(text)
        self.outbox.returned(list(self._queue.drain()), started=False)

    def stop(self, text: str, grace_seconds: float, now: float) -> None:
        """As `drain`, by another's wish; what is still out after the grace is ended and given back."""
        look_again = self._leaving.begin(text, self.outbox, grace_seconds, self._known_to_scheduler, now)
        self.outbox.returned(list(self._queue.drain()), started=False)
        self.wake_at = min(self.wake_at, look_again)

    def shutdown(self, text: str) -> None:
        """End at once, with all that is out."""
        self.ending = Ending(0, text or "the cluster was shut down")

    # -- what becomes of what is out -------------------------------------------------------------------------------

    def taken(self) -> None:
        """The executor took what it was given."""
        self.setbacks.taken()

    def not_taken(self, keys: Iterable[CallKey], text: str, now: float, jitter: float) -> None:
        """The executor did not take these, and may do so later. jitter: from 0 up to 1."""
        self.setbacks.refused(text, now, jitter)
        self._has_news = False
        back = [out.item for key in keys if (out := self._out.find(key)) is not None]
        for item in back:
            self._out.remove(item.id)
        if self._leaving.text:
            for item in back:
                del self._queue.attempts[item.id]
            self.outbox.returned(back, started=False)
        else:
            self._queue.put_back(back)

    def started(self, key: CallKey, now: float) -> None:
        """An attempt runs; its time limit counts from now."""
        out = self._out.find(key)
        if out is not None and out.started_at is None:
            self._out.started(out, now)
            self.wake_at = min(self.wake_at, self._out.wake_at)

    def arrived(self, key: CallKey) -> Attempt | None:
        """A result is here: return its attempt, for which `done` must follow; None when nobody waits for it."""
        out = self._out.find(key)
        if out is None:
            return None
        self._out.remove(out.item.id)
        self._arriving[out.item.id] = out.item
        self.setbacks.arrived()
        return out.item

    def done(
        self,
        item: Attempt,
        outcome: Outcome,
        payload: bytes,
        duration_us: int = 0,
        cpu_us: int = 0,
        peak_bytes: int = 0,
    ) -> None:
        """An attempt that is out or has arrived has ended like this."""
        identifier = item.id
        if self._queue.attempts.get(identifier) is not item:
            return  # forgotten
        self._arriving.pop(identifier, None)
        self._out.remove(identifier)
        del self._queue.attempts[identifier]
        done = self.outbox.done()
        done.ids.append(identifier)
        done.attempts.append(item.attempt)
        done.outcomes.append(outcome)
        done.payloads.append(payload)
        done.duration_us.append(duration_us)
        done.cpu_us.append(cpu_us)
        done.peak_bytes.append(peak_bytes)

    def failed(self, key: CallKey, outcome: Outcome, text: str, now: float, jitter: float) -> None:
        """An attempt has ended without a result. jitter: from 0 up to 1."""
        out = self._out.find(key)
        if out is None:
            return
        if outcome is Outcome.NOT_STARTED:
            self.setbacks.lost(text, out.handed_at, now, jitter)
        self._out.remove(out.item.id)
        self._say_ended(out.item, outcome, text)

    # -- once per turn ---------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Hand on what can be: call it after the inputs of a turn."""
        if self.ending is not None:
            return
        if self._leaving.text:
            if not self._queue.attempts and self._leaving.is_settled(now):
                self.ending = Ending(0, self._leaving.text)
            return
        if self._silence is not Silence.NONE or not len(self._queue):
            return
        wait = self.setbacks.wait_seconds(now, has_news=self._has_news)
        if wait > 0:
            self.wake_at = min(self.wake_at, now + wait)
            return
        while len(self._out) < self._settings.slots and (item := self._queue.take()) is not None:
            self._hand_on(item, now)

    def tick(self, now: float) -> None:
        """Do what time asks for; it is due at `wake_at`. Call `settle` after it."""
        self.wake_at = now + IDLE_TICK_SECONDS
        self._judge_silence(now)
        if ids := self._out.take_to_announce(now):
            self.outbox.send(Started(ids))
        for item in self._out.take_overdue(now):
            text = f"the task ran longer than its time limit of {item.spec.limit_seconds:g} s and was ended"
            self._end(item, Outcome.TIMED_OUT, text)
        self.wake_at = min(self.wake_at, self._out.wake_at)
        if now >= self._leaving.deadline:
            for out in self._out.all():
                text = f"the worker was told to end ({self._leaving.text}) while the task ran"
                self._end(out.item, Outcome.NOT_STARTED, text)
        else:
            self.wake_at = min(self.wake_at, self._leaving.deadline)

    def take_commands(self) -> list[Command]:
        """Return what is to be done, in order, and forget it."""
        commands = self._commands
        if commands:
            self._commands = []
        return commands

    @property
    def queued(self) -> int:
        """Attempts that have not been handed on."""
        return len(self._queue)

    def out(self) -> Sequence[Out]:
        """Return what the executor has, the oldest first."""
        return self._out.all()

    def check(self) -> None:
        """Assert the laws that this module's head states."""
        held = self._queue.attempts
        assert not self._arriving.keys() & set(self._out)
        assert len(held) == len(self._queue) + len(self._out) + len(self._arriving)
        assert all(held[out.item.id] is out.item for out in self._out.all())
        assert all(held[identifier] is item for identifier, item in self._arriving.items())
        assert len(self._out) <= self._settings.slots

    def _hand_on(self, item: Attempt, now: float) -> None:
        definitions = self._library.definitions
        found = [definitions.get(identifier, b"") for identifier in item.spec.definitions]
        if not all(found):
            del self._queue.attempts[item.id]
            self.outbox.ended(item, Outcome.OBJECT_LOST, "the task's function is not known to the worker")
            return
        item.processor = _NOT_QUEUED
        self._out.add(item, now)
        self._commands.append(HandOn(item, found[0], found[1] if len(found) > 1 else b""))

    # -- ends ------------------------------------------------------------------------------------------------------

    def _end(self, item: Attempt, outcome: Outcome, text: str) -> None:
        """Have an attempt that is out ended, and say so at once: what the executor still says of it is dropped."""
        self._out.remove(item.id)
        self._commands.append(Withdraw(item))
        self._say_ended(item, outcome, text)

    def _say_ended(self, item: Attempt, outcome: Outcome, text: str) -> None:
        del self._queue.attempts[item.id]
        if outcome is Outcome.NOT_STARTED and item.spec.retries == 0:
            outcome = Outcome.WORKER_LOST  # it may have begun, and may not run twice
        self.outbox.ended(item, outcome, text)

    def _judge_silence(self, now: float) -> None:
        before = self._silence
        silence = self._silence = self._contact.look(now)
        if silence is before:
            return
        if silence is not Silence.NONE:
            self.outbox.note(Level.WARNING, f"no word from the scheduler: {silence.name.lower().replace('_', ' ')}")
        if silence is Silence.KILL_ONCE:
            text = "the worker lost contact with the scheduler and ended the task, which may not run twice"
            for out in self._out.all():
                if out.item.spec.retries == 0:
                    self._end(out.item, Outcome.WORKER_LOST, text)
        elif silence is Silence.DEATH:
            seconds = self._settings.death_timeout_seconds
            why = f"no contact with the scheduler for {seconds:g} s (death_timeout_seconds)"
            self.ending = Ending(1, why, is_silence=True)
