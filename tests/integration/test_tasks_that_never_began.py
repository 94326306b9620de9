"""Workers that exit before their tasks start: the tasks are returned uncharged, including run-once tasks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ScalerError
from scaler.protocol.messages import Returned
from tests.integration.worker_rig import Rig, play
from tests.short_forms import short_form

FAILED_STARTS = 9
"""Failed processor starts: enough to make three workers in a row give up."""


def test_workers_that_cannot_start_processors_cost_no_attempt(tmp_path: Path) -> None:
    preload = f"tests.integration.failing_start:fail_at_first({str(tmp_path / 'starts')!r}, {FAILED_STARTS})"
    with SchedulerClusterCombo(n_workers=1, preload=preload) as cluster, Client(cluster.get_address()) as client:
        once = client.options(retries=0)
        futures = [once.submit(abs, -number) for number in range(5)] + [client.submit(abs, -5)]
        assert [future.result(60) for future in futures] == list(range(6))


def kill_fork_server(rig: Rig) -> None:
    os.kill(rig.fork_server.pid, signal.SIGKILL)


def fail(rig: Rig) -> None:
    rig.agent.fail(ScalerError("no descriptor is left"))


@pytest.mark.parametrize("end", [kill_fork_server, fail])
@pytest.mark.parametrize("retries", short_form([0, 3]))
def test_failing_agent_returns_unstarted_tasks_and_names_started_ones(
    end: Callable[[Rig], None], retries: int, tmp_path: Path
) -> None:
    def wait(began: Path) -> None:
        began.touch()
        signal.pause()

    rigs: list[Rig] = []
    ids: list[bytes] = []

    async def story(rig: Rig) -> None:
        rigs.append(rig)
        ids.extend(rig.submit(wait, (tmp_path / "began",), *[(tmp_path / "others",)] * 4, retries=retries))
        await rig.poll((tmp_path / "began").exists)
        end(rig)
        await rig.poll(rig.agent.ended.done)

    play(story)
    accounts = {
        identifier: started
        for message in rigs[0].messages(Returned)
        for identifier, started in zip(message.ids, message.started, strict=True)
    }
    assert accounts == {ids[0]: True, **dict.fromkeys(ids[1:], False)}
    assert not (tmp_path / "others").exists()
