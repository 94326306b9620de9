"""The screen of scaler_top, driven by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from scaler.errors import UnreachableError
from scaler.extensions.sharing.rows import ShareRow
from scaler.monitor.cluster_rows import TaskRow
from scaler.monitor.connection import MonitorConnection
from scaler.monitor.messages import TaskLog
from scaler.monitor.model import Model
from scaler.monitor.top.app import TopApp
from scaler.monitor.top.lines import Lines

WAIT_SECONDS = 20.0
TASK = "ab" * 16

Story = Callable[["Stage"], Awaitable[None]]


class Cluster(MonitorConnection):
    """A connection without a scheduler: a test provides statuses and answers."""

    last_error = ""

    def __init__(self) -> None:
        self.address = "tcp://127.0.0.1:7"
        self.model = Model()
        self.answer: str | UnreachableError = "no worker offers gpu=2"
        self.asked: list[str] = []
        self.found: list[TaskRow] = []
        self.at = 100.0

    @property
    def connected(self) -> bool:
        return not self.last_error

    async def explain(self, task_id: str) -> str:
        self.asked.append(task_id)
        if isinstance(self.answer, UnreachableError):
            raise self.answer
        return self.answer

    async def find(self, search: str) -> list[TaskRow]:
        self.asked.append(search)
        if isinstance(self.answer, UnreachableError):
            raise self.answer
        return self.found

    async def rows(self, name: str, search: str = "", most: int | None = None) -> list[Any]:
        self.asked.append(name)
        if isinstance(self.answer, UnreachableError):
            raise self.answer
        return [ShareRow("desk", "al\x1bice", "", 2.0, 80, 2.67, len(self.asked), 312, 8.6, 60.5)]

    async def log(self, task_id: str) -> TaskLog:
        self.asked.append(task_id)
        return TaskLog(bytes.fromhex(task_id), b"hello\x1b[2J\n", b"careful\n", 0)

    async def profile(self, task_id: str = "", function: str = "") -> dict[str, Any]:
        if not task_id:
            return {"of": "", "name": "", "functions": [["reprice", 4, 400_000, "step (model.py:120)"]]}
        self.asked.append(task_id)
        stacks = {"samples": 4, "frames": ["reprice (book.py:9)", "step (model.py:120)"], "stacks": [[400_000, 0, 1]]}
        return {"of": "task", "name": "reprice", **stacks}

    def tell(self, *workers: dict[str, Any], **parts: Any) -> None:
        self.at += 1.0
        totals = parts.pop("totals", {"workers": len(workers)})
        self.model.apply_status({"at": self.at, "incarnation": 1, "workers": list(workers), "totals": totals, **parts})


def worker(name: str, cpu: float = 0.0, rss: int = 0, **more: Any) -> dict[str, Any]:
    processor = {"pid": 7, "cpu_percent": cpu, "rss_bytes": rss, "initialized": True}
    return {"id": f"id-{name}", "name": name, "processors": [processor], **more}


class Stage:
    def __init__(self, cluster: Cluster, app: TopApp, pilot: Pilot[None]) -> None:
        self.cluster = cluster
        self.app = app
        self.pilot = pilot

    def text(self, name: str) -> str:
        return str(self.app.screen.query_one(name, Static).content)

    @property
    def rows(self) -> list[str]:
        """The content of the first column."""
        return [line.split()[0] for line in self.app.screen.query_one(Lines).texts]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                await self.pilot.pause(0.01)


def on_a_screen(story: Story, *, size: tuple[int, int] = (80, 24), workers: int = 3) -> None:
    async def main() -> None:
        cluster = Cluster()
        rows = [worker(f"w{number}", cpu=10.0 * number, rss=(9 - number) * 1024**2) for number in range(1, workers + 1)]
        cluster.tell(*rows)
        app = TopApp(cluster)
        async with app.run_test(size=size) as pilot:
            stage = Stage(cluster, app, pilot)
            await stage.until(lambda: len(stage.app.screen.query_one(Lines).texts) == workers)
            await story(stage)

    asyncio.run(main())


SHORTCUTS = {"n": "worker", "C": "agt_cpu", "c": "cpu", "M": "agt_rss", "m": "rss", "f": "free", "w": "sent"}
SHORTCUTS |= {"d": "queued", "l": "lag"}


def test_keys_sort_and_repeating_a_key_reverses_the_order() -> None:
    async def story(stage: Stage) -> None:
        assert stage.rows == ["w3", "w2", "w1"]
        assert "[cpu]" in stage.text("#head")
        await stage.press("m")
        assert stage.rows == ["w1", "w2", "w3"]
        assert "[rss]" in stage.text("#head")
        assert "[cpu]" not in stage.text("#head")
        await stage.press("m")
        assert stage.rows == ["w3", "w2", "w1"]
        assert "by rss lowest first" in stage.text("#totals")
        await stage.press("n", ">", ">")
        assert "[agt_cpu]" in stage.text("#head")
        for key, title in SHORTCUTS.items():
            await stage.press("less_than_sign", key)
            assert f"[{title}]" in stage.text("#head")

    on_a_screen(story)


def test_filter_applies_while_typing_until_cleared() -> None:
    async def story(stage: Stage) -> None:
        await stage.press("slash", "W", "2")
        assert stage.rows == ["w2"]
        assert "1 with 'W2'" in stage.text("#totals")
        await stage.press("enter")
        assert not stage.app.screen.query_one(Input).display
        await stage.press("m")
        assert stage.rows == ["w2"]
        await stage.press("slash", "escape")
        assert len(stage.rows) == 3

    on_a_screen(story)


def test_frozen_screen_stays_unchanged_until_resumed() -> None:
    async def story(stage: Stage) -> None:
        await stage.press("space")
        stage.cluster.tell(worker("new"))
        assert "frozen at" in stage.text("#state")
        await stage.pilot.pause(0.3)  # longer than the redraw interval
        await stage.press("n")
        assert stage.rows == ["w1", "w2", "w3"]
        await stage.press("space")
        assert stage.rows == ["new"]
        assert "frozen" not in stage.text("#state")

    on_a_screen(story)


def test_reported_data_is_drawn_and_the_selection_follows_its_worker() -> None:
    async def story(stage: Stage) -> None:
        lines = stage.app.screen.query_one(Lines)
        assert lines.key == "id-w3"
        await stage.press("n")
        assert lines.key == "id-w1"
        await stage.press("down")
        assert lines.key == "id-w2"
        stage.cluster.tell(worker("a"), worker("b"), worker("w2"), worker("w9"))
        await stage.until(lambda: stage.rows == ["a", "b", "w2", "w9"])
        assert (lines.key, lines.cursor) == ("id-w2", 2)
        stage.cluster.tell(worker("a"))
        await stage.until(lambda: stage.rows == ["a"])
        assert lines.key == "id-a"
        stage.cluster.tell()
        await stage.until(lambda: stage.rows == [])
        await stage.press("enter", "down", "end")
        assert lines.key == ""

    on_a_screen(story)


def test_detail_shows_processors_and_tasks_and_explains_the_selection() -> None:
    async def story(stage: Stage) -> None:
        processor = {"pid": 4711, "running": TASK, "running_seconds": 3.0, "function": "reprice", "initialized": True}
        stage.cluster.tell({"id": "1", "name": "busy", "processors": [processor]})
        await stage.until(lambda: stage.rows == ["busy"])
        await stage.press("enter")
        await stage.until(lambda: "4711" in stage.text("#facts"))
        assert "busy" in stage.text("#facts")
        assert stage.app.screen.query_one(Lines).key == TASK
        await stage.press("e")
        await stage.until(lambda: "no worker offers gpu=2" in stage.text("#text"))
        await stage.press("o")
        await stage.until(lambda: "--- stdout" in stage.text("#text"))
        assert r"hello\x1b[2J" in stage.text("#text")
        assert stage.cluster.asked == [TASK, TASK]
        stage.cluster.answer = UnreachableError("tcp://127.0.0.1:7 did not answer within 5 s")
        await stage.press("e")
        await stage.until(lambda: "did not answer within 5 s" in stage.text("#text"))
        stage.cluster.tell()
        await stage.until(lambda: "it has ended" in stage.text("#facts"))
        await stage.press("escape")
        assert "Total 0 workers" in stage.text("#totals")

    on_a_screen(story)


def test_lost_connection_is_shown_until_it_is_restored() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.last_error = "no scheduler answers at tcp://127.0.0.1:7 (connection refused)"
        await stage.until(lambda: "no scheduler answers" in stage.text("#state"))
        assert "reconnecting" in stage.text("#state")
        assert len(stage.rows) == 3
        stage.cluster.last_error = ""
        await stage.until(lambda: "no scheduler answers" not in stage.text("#state"))

    on_a_screen(story, size=(160, 24))


def test_names_are_shown_literally_and_never_parsed_as_markup() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.tell(worker("[red]\x1b[2J[/]"), clients=[{"name": "[bold]x[/bold]"}])
        await stage.until(lambda: stage.rows == [r"[red]\x1b[2J[/]"])
        assert "[bold]x[/bold]" in stage.text("#side")

    on_a_screen(story, size=(200, 24))


GROUPS = [
    {"id": "a", "function": "combine", "tasks": 5, "age_seconds": 75.0, "reason": "it needs 3 results", "oldest": TASK},
    {"id": "b", "function": "train\x1b", "capabilities": "gpu=2", "priority": -3, "tasks": 123_456, "ready": 4},
]


def test_waiting_tasks_are_listed_by_group_with_an_explanation() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.tell(waiting=GROUPS, totals={"waiting": 2})
        await stage.press("t")
        await stage.until(lambda: len(stage.app.screen.query_one(Lines).texts) == 2)
        assert stage.text("#facts") == "waiting tasks: 2 groups"
        first, second = stage.app.screen.query_one(Lines).texts
        assert first.split() == ["combine", "5", "0", "1m15s", "it", "needs", "3", "results"]
        assert second.split() == ["train\\x1b", "gpu=2", "-3", "123K", "4", "0ms"]
        await stage.press("e")
        await stage.until(lambda: "no worker offers gpu=2" in stage.text("#text"))
        assert stage.cluster.asked == [TASK]
        stage.cluster.tell(waiting=GROUPS[:1], totals={"waiting": 1})
        await stage.until(lambda: stage.text("#facts") == "waiting tasks: 1 group")
        await stage.press("escape")
        assert stage.text("#totals").startswith("Total")

    on_a_screen(story)


GRID = {"id": "grid", "kind": "test", "desired": 14, "running": 12, "reason": "400 tasks wait for 12 slots"}


def test_units_screen_explains_why_units_run_and_their_costs() -> None:
    async def story(stage: Stage) -> None:
        spending = {"run": 3.0, "per_hour": 1.5, "hour": 2.0, "today": 2.5, "day_limit": 9.0, "day": 3.0}
        stage.cluster.tell(managers=[GRID], spending=spending)
        await stage.press("u")
        await stage.until(lambda: "grid" in stage.text("#text"))
        head, row, *costs = stage.text("#text").splitlines()
        assert head.split()[:3] == ["manager", "kind", "desired"]
        assert row.split()[:4] == ["grid", "test", "14", "12"]
        assert row.endswith("400 tasks wait for 12 slots")
        assert costs[2].split() == ["1.50", "2.00", "2.50", "3.00", "0.0000", "9.00", "0.0000"]
        await stage.press("u")
        assert stage.text("#totals").startswith("Total")
        stage.cluster.tell()
        await stage.press("u")
        await stage.until(lambda: stage.text("#text").startswith("no worker manager is connected"))

    on_a_screen(story, size=(100, 24))


STORES = [
    {"id": "0", "host": "object storage", "bytes": 2048, "limit_bytes": 4096},
    {"id": "1", "host": "al\x1bpha", "bytes": 4096, "limit_bytes": 8192, "hits": 3, "misses": 1},
]
PAIRS = [
    {"id": "0-1", "source": "object storage", "target": "alpha", "bytes": 3072},
    {"id": "1-2", "source": "alpha", "target": "beta", "unreachable": True},
]


@pytest.mark.parametrize("size", [(120, 24), pytest.param((60, 24), marks=pytest.mark.full)])
def test_data_screen_shows_stores_transfers_and_hosts_without_a_route(size: tuple[int, int]) -> None:
    async def story(stage: Stage) -> None:
        totals = {"stores": 2, "moved_bytes": 3072, "unreachable": 1}
        stage.cluster.tell(stores=STORES, pairs=PAIRS, totals=totals)
        await stage.press("b")
        await stage.until(lambda: "2 stores, 3.0k moved between them" in stage.text("#text"))
        _, network, _, head, *rows = [line.rstrip() for line in stage.text("#text").splitlines()]
        assert network.startswith("network: Neither the network nor the scheduler is slow")
        assert ("hit rate" in head) == (size[0] == 120)
        assert [line.split()[0] for line in rows[:2]] == ["al\\x1bpha", "object"]
        assert ("75.0%" in rows[0]) == (size[0] == 120)
        assert "  alpha -> beta" in rows
        assert rows[-1].split() == ["object", "storage", "alpha", "3.0k"]
        await stage.press("escape")
        assert stage.text("#totals").startswith("Total")

    on_a_screen(story, size=size)


def test_screen_of_shares_asks_again_and_keeps_the_rows_while_there_is_no_answer() -> None:
    async def story(stage: Stage) -> None:
        def slots() -> list[str]:
            title, _, head, *rows = [line.rstrip() for line in stage.text("#text").splitlines()]
            assert title == "Shares of the slots"
            assert " ".join(head.split()) == "group key client weight maximum share slots ready used total cost stopped"
            return [row.split()[5] for row in rows if row.split()[:2] == ["desk", "al\\x1bice"]]

        await stage.press("s")
        await stage.until(lambda: slots() == ["2"])
        stage.cluster.answer = UnreachableError("tcp://127.0.0.1:7 did not answer within 5 s")
        await stage.until(lambda: len(stage.cluster.asked) > 3)
        assert slots() == ["2"]
        await stage.press("s")
        assert stage.text("#totals").startswith("Total")

    on_a_screen(story, size=(120, 24))


def test_search_finds_tasks_and_an_empty_search_shows_waiting_ones() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.found = [TaskRow(TASK, "ready", "queue_me"), TaskRow("cd" * 16, "waiting", "quit")]
        stage.cluster.tell(waiting=GROUPS, totals={"waiting": 2})
        await stage.press("t", "slash", *"qu", "enter")
        await stage.until(lambda: stage.rows == [TASK, "cd" * 16])
        assert stage.text("#facts") == "2 tasks found with 'qu'"
        assert stage.app.screen.query_one(Lines).texts[0].split() == [TASK, "ready", "queue_me"]
        await stage.press("down", "o")
        await stage.until(lambda: "--- stdout" in stage.text("#text"))
        assert stage.cluster.asked == ["qu", "cd" * 16]
        stage.cluster.answer = UnreachableError("tcp://127.0.0.1:7 did not answer within 5 s")
        await stage.press("slash", "x", "enter")
        await stage.until(lambda: "did not answer within 5 s" in stage.text("#text"))
        assert stage.text("#facts") == "0 tasks found with 'x'"
        await stage.press("slash", "backspace", "enter")
        await stage.until(lambda: stage.text("#facts") == "waiting tasks: 2 groups")

    on_a_screen(story)
