"""Names, texts, and output that try to control a terminal, reverse a line, or be endless, in every view."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.client.future import ScalerFuture
from scaler.errors import RemoteError, UsageError
from tests.short_forms import short_form
from tests.waiting import until

HIDDEN = "\x1b[2J\x07\x9b\u202e\u2066\u200b\u00ad\U000e0041\u2028"
EVIL = f"{HIDDEN}<b>evil</b>"
SHOWN = "\\x1b[2J\\x07\\x9b\\u202e\\u2066\\u200b\\xad\\U000e0041\\u2028<b>evil</b>"
MOST = 100_000
WAIT_SECONDS = 15.0


def is_safe(text: str) -> bool:
    return len(text) < MOST and not set(HIDDEN[:1] + HIDDEN[4:]) & set(text)


def texts_of(value: object) -> Iterator[str]:
    """Yield every text of a document."""
    match value:
        case str():
            yield value
        case dict():
            for key, each in value.items():
                yield key
                yield from texts_of(each)
        case list():
            for each in value:
                yield from texts_of(each)


def fail(text: str) -> None:
    print(text)
    print(text, file=sys.stderr)
    raise ValueError(text)


fail.__qualname__ = fail.__name__ = EVIL


class Cluster(NamedTuple):
    combo: SchedulerClusterCombo
    client: Client
    failed: ScalerFuture
    waiting: ScalerFuture
    log: Path

    def command(self, *arguments: str) -> str:
        """Return the output of a command."""
        command = [sys.executable, "-m", "scaler.cli", *arguments]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        return (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster whose client, functions, needs, output, and exceptions have such texts."""
    log = tmp_path_factory.mktemp("log") / "log"
    with (
        SchedulerClusterCombo(n_workers=1, web_port=0, logging_paths=(str(log),), logging_level="DEBUG") as combo,
        Client(combo.get_address(), name=EVIL) as client,
    ):
        failed = client.submit(fail, EVIL)
        with pytest.raises(ValueError, match="evil"):
            failed.result()
        waiting = client.submit_verbose(fail, args=(EVIL,), kwargs={}, capabilities={"gpu": 1})
        endless = client.submit(fail, EVIL + "a" * 10_000_000)
        with pytest.raises(RemoteError) as raised:
            endless.result()
        assert is_safe(str(raised.value)[:MOST])
        yield Cluster(combo, client, failed, waiting, log)
        waiting.cancel()


def test_clients_show_hostile_text_literally(cluster: Cluster) -> None:
    for future in (cluster.failed, cluster.waiting):
        assert is_safe(cluster.client.explain(future))
    assert SHOWN in cluster.client.explain(cluster.failed)
    output = cluster.client.logs(cluster.failed)
    assert output.stdout == output.stderr == f"{SHOWN}\n"
    assert is_safe(repr(cluster.failed) + repr(cluster.client))
    with pytest.raises(UsageError) as refused:
        cluster.client.submit_verbose(fail, args=(EVIL,), kwargs={}, capabilities={EVIL: 1})
    assert is_safe(str(refused.value))


ROUTES = [
    "status",
    "workers",
    "managers",
    "clients",
    "functions",
    "waiting",
    "tasks",
    "failures",
    "timeline",
    "incidents",
]


@pytest.mark.parametrize("route", short_form([*ROUTES], 4))
def test_api_returns_hostile_text_literally(cluster: Cluster, route: str) -> None:
    page = cluster.combo.get_page()
    shown = route in ("clients", "functions", "waiting", "tasks", "failures", "timeline")

    def answer_with_them() -> list[str]:
        # A worker names the function of its last report, even after the task has ended.
        texts = list(texts_of(httpx.get(f"{page}/api/{route}").json()))
        return texts if (SHOWN in texts) is shown else []

    assert all(map(is_safe, until(answer_with_them)))


@pytest.mark.parametrize("what", ["", "/explain", "/log"])
def test_task_api_returns_hostile_text_literally(cluster: Cluster, what: str) -> None:
    for future in (cluster.failed, cluster.waiting):
        answer = httpx.get(f"{cluster.combo.get_page()}/api/tasks/{future.task_id.hex()}{what}").json()
        assert all(map(is_safe, texts_of(answer)))


def test_metrics_escape_hostile_text(cluster: Cluster) -> None:
    text = until(lambda: found if "evil" in (found := httpx.get(f"{cluster.combo.get_page()}/metrics").text) else "")
    assert all(map(is_safe, text.splitlines()))


def test_commands_escape_hostile_text(cluster: Cluster) -> None:
    monitor = cluster.combo.get_monitor_address()
    for name in ("explain", "logs"):
        shown = cluster.command("scaler", name, cluster.failed.task_id.hex(), monitor)
        assert is_safe(shown)
        assert "evil" in shown
    shown = cluster.command("scaler_top", "--once", monitor)
    assert is_safe(shown)
    assert "evil" in shown


def test_logs_escape_hostile_text(cluster: Cluster) -> None:
    text = until(lambda: found if "evil" in (found := cluster.log.read_text()) else "")
    assert all(map(is_safe, text.splitlines()))
