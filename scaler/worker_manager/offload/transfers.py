"""Between the object storage and calls: what a task refers to is put into its call, and a large result is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from scaler.errors import ScalerError
from scaler.ids import result_id
from scaler.protocol.messages import INLINE_LIMIT_BYTES, Outcome, is_stored
from scaler.serialization import size_of, to_payload
from scaler.worker.attempts import Attempt
from scaler.worker.call import Call, CallResult
from scaler.worker.frames import SpecFlag
from scaler.worker.processor.calling import failure_of
from scaler.worker_manager.offload.core import HandOn
from scaler.worker_manager.offload.objects import Objects


class OnEnd(Protocol):
    """Called when a task has ended: with its result, if there is one."""

    def __call__(self, item: Attempt, outcome: Outcome, payload: bytes, result: CallResult | None) -> None: ...


class Transfers:
    """Belongs to the running loop. What needs no storage is done at once, before the method returns."""

    def __init__(self, objects: Objects, on_call: Callable[[Call], None], on_end: OnEnd, preload: str = "") -> None:
        """preload: what every call's process is to call before its first task."""
        self._objects = objects
        self._on_call = on_call
        self._on_end = on_end
        self._preload = preload
        self._fetches: dict[Attempt, asyncio.Task[None]] = {}
        self._puts: set[asyncio.Task[None]] = set()

    def hand_on(self, hand: HandOn) -> None:
        """Make the call of an attempt; `on_call` gets it, or `on_end` the reason why it cannot be made."""
        item = hand.item
        if not any(map(is_stored, (item.payload, hand.function, hand.serializer, *item.inputs))):
            self._on_call(_call_of(item, hand.function, hand.serializer, item.payload, item.inputs, self._preload))
            return
        self._fetches[item] = asyncio.create_task(self._fetch(hand))

    def withdraw(self, item: Attempt) -> bool:
        """Make no call of this attempt. Returns False when it was made already."""
        task = self._fetches.pop(item, None)
        if task is not None:
            task.cancel()
        return task is not None

    def deliver(self, item: Attempt, result: CallResult) -> None:
        """Have `on_end` called with the payload of this result."""
        parts = result.parts
        if result.outcome is not Outcome.SUCCESS:
            self._on_end(item, result.outcome, bytes(parts[0]), result)
        elif size_of(parts) <= INLINE_LIMIT_BYTES:
            self._on_end(item, result.outcome, to_payload(parts), result)
        else:
            self._keep(self._put(item, result))

    async def close(self) -> None:
        """Stop all that is under way, and leave the storage."""
        tasks = [*self._fetches.values(), *self._puts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._objects.close()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._puts.add(task)
        task.add_done_callback(self._puts.discard)

    async def _fetch(self, hand: HandOn) -> None:
        item = hand.item
        payload = self._objects.payload
        try:
            function, serializer, arguments, *inputs = await asyncio.gather(
                payload(hand.function), payload(hand.serializer), payload(item.payload), *map(payload, item.inputs)
            )
        except ScalerError as error:
            del self._fetches[item]
            self._on_end(item, *failure_of(error, _never, __file__), None)
            return
        del self._fetches[item]
        self._on_call(_call_of(item, function, serializer, arguments, inputs, self._preload))

    async def _put(self, item: Attempt, result: CallResult) -> None:
        try:
            payload = await self._objects.put(result_id(item.id, item.attempt), result.parts)
        except ScalerError as error:
            self._on_end(item, *failure_of(error, _never, __file__), result)
        else:
            self._on_end(item, result.outcome, payload, result)


def _never(_error: BaseException) -> bool:
    return False


def _call_of(
    item: Attempt,
    function: bytes,
    serializer: bytes,
    arguments: bytes,
    inputs: list[bytes] | tuple[bytes, ...],
    preload: str,
) -> Call:
    frame = item.spec.frame
    return Call(
        task=item.id,
        attempt=item.attempt,
        function=function,
        arguments=arguments,
        inputs=tuple(inputs),
        serializer=serializer,
        retry_on=frame.retry_on,
        name=frame.name,
        profiling=bool(frame.flags & SpecFlag.PROFILING),
        stream_output=bool(frame.flags & SpecFlag.STREAM_OUTPUT),
        limit_seconds=item.spec.limit_seconds,
        once=item.spec.retries == 0,
        preload=preload,
    )
