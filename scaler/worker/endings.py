"""How attempts end: by their results, by the death of their processor, or because it is killed for them. Pure."""

from __future__ import annotations

from scaler.errors import ProtocolError
from scaler.protocol.messages import Outcome
from scaler.worker.attempts import Attempt, Queue
from scaler.worker.feeding import Feeding
from scaler.worker.frames import Results
from scaler.worker.hands import Hands
from scaler.worker.outbox import Level, Outbox
from scaler.worker.pool import Doom, Pool, Processor, Standing

_MAX_OUTCOME = Outcome.OBJECT_LOST


class Endings:
    """Takes in results and deaths, and kills."""

    def __init__(self, pool: Pool, queue: Queue, feeding: Feeding, hands: Hands, outbox: Outbox) -> None:
        self._pool = pool
        self._queue = queue
        self._feeding = feeding
        self._hands = hands
        self._outbox = outbox

    def results(self, processor: Processor, batch: Results, sent: bool, now: float) -> None:
        """Take in results. sent: they came as a message, and were not only read from the page."""
        batch = processor.unseen(batch, sent)
        if not batch.rows:
            return
        fed = processor.fed
        attempts = self._queue.attempts
        done = self._outbox.done() if processor.doom is None or processor.doom.outcome is not None else None
        payloads = batch.payloads
        at = 0
        for identifier, attempt, outcome, _, duration_us, cpu_us, peak_bytes, size in batch.rows:
            if not fed or fed[0].id != identifier or fed[0].attempt != attempt or outcome > _MAX_OUTCOME:
                self.distrust(processor, "it reported a task that it does not have")
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

    def collect(self, processor: Processor, now: float) -> None:
        """Take in the results that are there. A processor that left nonsense is on its way out already, or is now."""
        try:
            for batch, sent in self._hands.collect(processor.number):
                self.results(processor, batch, sent, now)
        except ProtocolError as error:
            self.distrust(processor, str(error))

    def kill(self, processor: Processor, item: Attempt, doom: Doom, now: float) -> None:
        """End the attempt that a processor runs; what it has not read was taken back before.

        A result that came first wins: then nobody is killed.
        """
        self.collect(processor, now)
        if not self.holds(item) or processor.standing is Standing.ENDING:
            return
        processor.stand(Standing.ENDING, now)
        processor.doom = doom
        self._hands.kill(processor.number)

    def exited(self, processor: Processor, how: str, now: float) -> None:
        """A processor is gone. how: exit code or signal, and its last words, for people."""
        number = processor.number
        self.collect(processor, now)
        self._feeding.take_back(processor)
        snapshot = self._hands.snapshot(number)
        doom = processor.doom or Doom(Outcome.PROCESSOR_DIED, f"the processor that ran the task died: {how}")
        begun = snapshot.begun > processor.resulted
        if processor.doom is None and processor.standing is not Standing.ENDING:
            task = processor.fed[0].id if begun and processor.fed else b""
            what = f"while it ran task {task.hex()}" if task else "while it was idle"
            self._outbox.note(Level.WARNING, f"processor {number} died {what}: {how}", task)
        # It may have been killed between reading a task and beginning it; what was cancelled is over nevertheless.
        is_over = begun or doom.outcome is Outcome.CANCELLED
        if processor.fed and is_over and doom.outcome is not None:
            item = processor.fed.popleft()
            del self._queue.attempts[item.id]
            self._died_with(item, doom)
        if doom.outcome is not None:
            self._queue.put_back(processor.fed)
        processor.fed.clear()
        del self._pool.processors[number]
        self._hands.release(number)

    def distrust(self, processor: Processor, text: str) -> None:
        """End a processor that says nonsense."""
        if processor.standing is Standing.ENDING:
            return
        task = processor.fed[0].id if processor.fed else b""
        self._outbox.note(Level.ERROR, f"processor {processor.number} is ended: {text}", task)
        self._feeding.take_back(processor)
        processor.stand(Standing.ENDING, processor.since)
        processor.doom = Doom(Outcome.PROCESSOR_DIED, f"the processor that ran the task was ended: {text}")
        self._hands.kill(processor.number)

    def _died_with(self, item: Attempt, doom: Doom) -> None:
        outcome = Outcome(doom.outcome or 0)
        if outcome is Outcome.NOT_STARTED and item.spec.retries == 0:
            outcome = Outcome.WORKER_LOST
        self._outbox.ended(item, outcome, doom.text)

    def holds(self, item: Attempt) -> bool:
        """Tell whether an attempt has not ended."""
        return self._queue.attempts.get(item.id) is item
