"""The storage core's handling of objects that are also in a backend."""

from __future__ import annotations

from scaler.ids import IdFactory, cache_owner, cached_id, result_id
from scaler.object_storage.commands import (
    ForgetInBackend,
    SendToScheduler,
    StorageCommand,
    StorageInput,
    WriteToBackend,
    WrittenToBackend,
)
from scaler.object_storage.messages import ObjectsDropped
from scaler.protocol.chunks import LARGE_BYTES
from scaler.protocol.messages import ForgetObjects, ForgetOwner
from tests.unit.object_storage.storage_story import CLIENT, SCHEDULER, WORKER, Story, replies

MADE = IdFactory(CLIENT)
FIRST, SECOND, THIRD = MADE.object(), MADE.object(), MADE.object()
LARGE = bytes(LARGE_BYTES)


class BackendStory(Story):
    """An object storage with a backend and room for three large objects. `told`: notifications of its shell."""

    def __init__(self) -> None:
        super().__init__(3 * LARGE_BYTES, put_wait_seconds=5.0)
        self.core.backend_held = list
        self.core.can_fetch = True
        self.told: list[StorageCommand] = []
        step = self.core.step

        def note(inputs: list[StorageInput], now: float) -> list[StorageCommand]:
            commands = step(inputs, now)
            kinds = WriteToBackend | ForgetInBackend | SendToScheduler
            self.told += [command for command in commands if isinstance(command, kinds)]
            return commands

        self.core.step = note  # type: ignore[method-assign,assignment]

    def written(self) -> list[bytes]:
        """Return the ids of objects that the core asked the shell to write."""
        return [each.id for each in self.told if isinstance(each, WriteToBackend)]


def test_only_large_uncached_objects_are_written_to_the_backend() -> None:
    story = BackendStory()
    story.puts(CLIENT, FIRST, LARGE)
    story.puts(CLIENT, SECOND, LARGE[:-1])
    story.puts(CLIENT, cached_id(cache_owner(""), b"digest"), LARGE)
    story.puts(WORKER, result := result_id(MADE.task(), 1), LARGE)
    assert story.written() == [FIRST, result]


def test_memory_drops_objects_in_the_backend_and_waiting_puts_continue() -> None:
    story = BackendStory()
    for object_id in (FIRST, SECOND, THIRD):
        story.puts(CLIENT, object_id, LARGE)
    late = MADE.object()
    assert story.puts(CLIENT, late, LARGE) == []
    assert replies(story.step(WrittenToBackend([(FIRST, LARGE_BYTES), (SECOND, LARGE_BYTES)]))) == [(CLIENT, 1, "ok")]
    assert SendToScheduler(ObjectsDropped([FIRST, SECOND])) in story.told
    assert {object_id for object_id, _ in story.core.objects.sizes()} >= {THIRD, late}


def test_released_objects_are_deleted_from_the_backend_even_if_not_in_memory() -> None:
    story = BackendStory()
    story.says(SCHEDULER, ForgetObjects([FIRST]))
    story.says(SCHEDULER, ForgetOwner(CLIENT))
    assert story.told == [ForgetInBackend([FIRST]), ForgetInBackend([], CLIENT)]
