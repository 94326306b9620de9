"""The object storage's part of a backend in isolation: times of writes, and behaviour during failures."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scaler.errors import UnreachableError
from scaler.ids import IdFactory, new_peer_id, owner_of
from scaler.object_storage.backend import run as backend_run
from scaler.object_storage.backend.run import BackendClient, BackendRun
from scaler.object_storage.body import Body
from tests.waiting import soon

MADE = IdFactory(new_peer_id())
SIZE = 3_000_000


def body(content: bytes) -> Body:
    return Body([len(content)], [memoryview(content)], len(content))


class Story:
    """A run in a directory, on the running loop."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = BackendRun(root.as_uri())
        self.written: list[bytes] = []
        self.run.begin(lambda rows: self.written.extend(object_id for object_id, _ in rows))

    def stored(self) -> set[str]:
        return {path.name for path in self.root.glob("run-*/*") if len(path.name) == 32}


def play(root: Path, story: Callable[[Story], Awaitable[None]]) -> None:
    async def main() -> None:
        it = Story(root)
        try:
            await story(it)
        finally:
            await it.run.end()

    asyncio.run(main())


def test_object_round_trips_in_chunks(tmp_path: Path) -> None:
    content = os.urandom(SIZE)

    async def story(it: Story) -> None:
        it.run.write(object_id := MADE.object(), body(content))
        await soon(lambda: it.written == [object_id])
        assert it.run.held() == [(object_id, SIZE)]
        client = BackendClient(it.run.url, it.run.key)
        chunks = await asyncio.gather(*(client.get_chunk(object_id, SIZE, number) for number in range(12)))
        assert b"".join(bytes(frame) for chunk in chunks for frame in chunk.frames) == content
        assert all(chunk.parts == [SIZE] for chunk in chunks)
        client.close()

    play(tmp_path, story)


def test_objects_wait_with_a_warning_while_the_backend_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_run, "RETRY_SECONDS", 0.05)
    root = tmp_path / "backend"

    async def story(it: Story) -> None:
        shutil.move(root, tmp_path / "away")
        root.write_text("a file in the way")
        kept, forgotten = MADE.object(), MADE.object()
        it.run.write(kept, body(bytes(SIZE)))
        it.run.write(forgotten, body(bytes(SIZE)))
        await soon(lambda: "objects stay in memory because the backend rejects them: cannot write" in caplog.text)
        it.run.forget([forgotten])
        root.unlink()
        shutil.move(tmp_path / "away", root)
        await soon(lambda: it.written == [kept])
        assert it.stored() == {kept.hex()}

    play(root, story)


def test_objects_released_while_being_written_are_deleted(tmp_path: Path) -> None:
    async def story(it: Story) -> None:
        gone, kept, of_others = MADE.object(), MADE.object(), IdFactory(new_peer_id()).object()
        bodies = {each: body(bytes(SIZE)) for each in (gone, kept, of_others)}
        for object_id, each in bodies.items():
            it.run.write(object_id, each)
        bodies[gone].is_dropped = True
        it.run.forget([gone])
        await soon(lambda: it.stored() == {kept.hex(), of_others.hex()})
        it.run.write(kept, bodies[kept])  # again, like a client that missed the answer
        it.run.forget([], owner_of(kept))
        await soon(lambda: it.stored() == {of_others.hex()})

    play(tmp_path, story)


def test_host_with_a_different_disk_is_unreachable_and_loses_no_objects(tmp_path: Path) -> None:
    async def story(it: Story) -> None:
        it.run.write(object_id := MADE.object(), body(bytes(SIZE)))
        await soon(lambda: it.written == [object_id])
        (tmp_path / "other").mkdir()
        client = BackendClient((tmp_path / "other" / it.run.name).as_uri(), it.run.key)
        with pytest.raises(UnreachableError, match="finds no data of this run"):
            await client.get_chunk(object_id, SIZE, 0)
        client.close()

    play(tmp_path / "backend", story)
