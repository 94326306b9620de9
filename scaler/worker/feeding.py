"""Brings slots, processors and attempts together: who gets a slot, and which attempts a processor has ahead. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scaler.protocol.messages import Outcome
from scaler.worker.attempts import Attempt, KnownSpec, Library, Queue
from scaler.worker.frames import pack_definition, pack_forget, pack_spec, pack_storage, pack_task
from scaler.worker.hands import Hands
from scaler.worker.outbox import Outbox
from scaler.worker.pool import Pool, Processor, Standing

SHARE_AFTER_SECONDS = 0.01
"""When a processor idles, what waits behind a task that has run for so long is given to it."""


class Feeding:
    """Hands out slots and attempts; takes back what has not been read."""

    def __init__(self, pool: Pool, queue: Queue, library: Library, hands: Hands, outbox: Outbox) -> None:
        self._pool = pool
        self._queue = queue
        self._library = library
        self._hands = hands
        self._outbox = outbox
        self._storage_address = ""

    def use_storage(self, address: str) -> None:
        """Tell all processors, now and later, where the object storage is."""
        if address != self._storage_address:
            self._storage_address = address
            for processor in self._pool:
                self._hands.tell(processor.number, pack_storage(address))

    def fill(self, now: float) -> None:
        """Hand out free slots: to those that wait for one, to spare processors, to new ones."""
        pool = self._pool
        active = len(pool.active())
        if active == pool.slots and not any(each.standing is Standing.WAITING for each in pool.processors.values()):
            return
        waiting = pool.waiting()
        for processor in sorted(pool.active(), key=lambda each: each.ready):
            if waiting and not processor.fed and active + len(waiting) > pool.slots:
                processor.stand(Standing.SPARE, now)
                active -= 1
        while active < pool.slots:
            if waiting:
                processor = waiting.pop(0)
                processor.stand(Standing.ACTIVE, now)
                self._hands.grant(processor.number)
                if processor.fed:
                    self._outbox.suspended(processor.fed[0], False)
            elif spares := pool.spares():
                spares[-1].stand(Standing.ACTIVE, now)
            elif pool.unsuspended() < pool.slots and (not pool.suspended() or len(self._queue)):
                self._spawn(now)
            else:
                break
            active += 1
        for processor in pool.active():
            processor.yielding = False
        for processor in sorted(pool.active(), key=lambda each: len(each.fed))[: len(waiting)]:
            processor.yielding = True
            self.take_back(processor)

    def _spawn(self, now: float) -> None:
        processor = self._pool.add(now)
        self._hands.spawn(processor.number)
        if self._storage_address:
            self._hands.tell(processor.number, pack_storage(self._storage_address))

    def feed(self) -> None:
        """Give out what is in the queue, as far ahead as is good.

        A processor gets nothing before it is ready: what it would have to begin with may not be the first any more.
        """
        hungry = [each for each in self._pool.active() if each.ready and not each.yielding and each.has_room()]
        queue = self._queue
        while hungry and len(queue):
            processor = hungry[0] if len(hungry) == 1 else min(hungry, key=lambda each: (each.work_us, len(each.fed)))
            item = queue.take()
            if item is None:
                return
            if not self._give(processor, item):
                queue.put_back([item])
                hungry.remove(processor)
            elif not processor.has_room():
                hungry.remove(processor)

    def _give(self, processor: Processor, item: Attempt) -> bool:
        """Feed an attempt to a processor. False: its socket is full."""
        spec = item.spec
        if spec.number not in processor.specs:
            missing = [identifier for identifier in spec.definitions if identifier not in self._library.definitions]
            if missing:
                del self._queue.attempts[item.id]
                self._outbox.ended(item, Outcome.OBJECT_LOST, "the task's function is not known to its worker")
                return True
            if not self._introduce(processor, spec):
                return False
        if not self._hands.feed(
            processor.number, pack_task(spec.number, item.id, item.attempt, item.payload, item.inputs)
        ):
            return False
        item.processor = processor.number
        item.cost_us = spec.pace.mean_us
        processor.work_us += item.cost_us
        processor.fed.append(item)
        return True

    def _introduce(self, processor: Processor, spec: KnownSpec) -> bool:
        for identifier in spec.definitions:
            if identifier not in processor.definitions:
                datagram = pack_definition(identifier, self._library.definitions[identifier])
                if not self._hands.tell(processor.number, datagram):
                    return False
                processor.definitions.add(identifier)
        if not self._hands.tell(processor.number, pack_spec(spec.frame)):
            return False
        processor.specs.add(spec.number)
        return True

    def share(self, now: float) -> bool:
        """Give an idle processor what waits behind a long task. Returns True when it is worth another look soon."""
        active = [each for each in self._pool.active() if not each.yielding]
        if len(self._queue) or all(each.fed or not each.ready for each in active):
            return False
        again = False
        for processor in sorted(active, key=lambda each: each.work_us, reverse=True):
            if len(processor.fed) < 2:
                continue
            snapshot = self._hands.snapshot(processor.number)
            is_stuck = snapshot.begun > processor.resulted and now - snapshot.begun_at > SHARE_AFTER_SECONDS
            if is_stuck:
                self.take_back(processor)
                self.feed()
                return True
            again = True
        return again

    def take_back(self, processor: Processor) -> None:
        """Put what a processor has not read to the head of the queue."""
        taken = set(self._hands.take_back(processor.number))
        if not taken:
            return
        items = [item for item in processor.fed if item.id in taken]
        processor.fed = deque(item for item in processor.fed if item.id not in taken)
        processor.work_us = sum(item.cost_us for item in processor.fed)
        if processor.doom is None or processor.doom.outcome is not None:
            self._queue.put_back(items)

    def forget(self, specs: Iterable[KnownSpec], definitions: Iterable[bytes]) -> None:
        """Have processors forget what they know of these."""
        numbers = {spec.number for spec in specs}
        identifiers = set(definitions)
        for processor in self._pool:
            # What is fed may be run after this is read, so it stays known; the few bytes are not worth more.
            forget_specs = numbers & processor.specs - {item.spec.number for item in processor.fed}
            forget_definitions = identifiers & processor.definitions
            if (forget_specs or forget_definitions) and self._hands.tell(
                processor.number, pack_forget(list(forget_definitions), list(forget_specs))
            ):
                processor.specs -= forget_specs
                processor.definitions -= forget_definitions
