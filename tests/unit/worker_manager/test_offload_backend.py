"""The backend of one offload agent: its processes, the agent's settings, and the reported state."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.config.worker import WORKER_CONFIG_VARIABLE
from scaler.errors import ConfigError
from scaler.protocol.messages import UnitState
from scaler.testing.executors import ProcessExecutor
from scaler.worker_manager import offload
from scaler.worker_manager.backend import Unit
from scaler.worker_manager.baremetal_native import BaremetalNativeConfig
from scaler.worker_manager.offload import OffloadBackend, OffloadConfig, load_executor

DEADLINE_SECONDS = 10.0
AGENT = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Path(sys.argv[1]).write_text(os.environ["SCALER_WORKER_CONFIG"])
words = int(os.environ["SCALER_LAST_WORDS_FD"])
os.pwrite(words, b"jobs wait for capacity", 0)
with os.fdopen(int(os.environ["SCALER_READY_FD"]), "w") as pipe:
    pipe.write("ready")
while True:
    signal.pause()
"""
SETTINGS: dict[str, Any] = {"processes": 3, "verbose": True, "queue": "q", "ratio": 0.5, "names": ["a"], "none": None}


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OffloadBackend]:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    monkeypatch.setattr(offload, "COMMAND", (sys.executable, str(script), str(tmp_path / "document")))
    config = BaremetalNativeConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="my grid")
    backend = OffloadBackend(config, "scaler.testing.executors:ProcessExecutor", 100, SETTINGS, stop_grace_seconds=7.0)
    yield backend
    backend.close()


def until(backend: OffloadBackend, fits: Callable[[Unit], bool]) -> Unit:
    descriptor = backend.fileno()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not fits(unit := backend.list()[0]):
        assert time.monotonic() < deadline, unit
        if descriptor is not None:
            select.select([descriptor], [], [], 0.1)
    return unit


def test_agent_gets_its_executor_and_settings(backend: OffloadBackend, tmp_path: Path) -> None:
    [unit_id] = backend.start(1)
    until(backend, lambda unit: unit.state is UnitState.RUNNING)
    config = OffloadConfig.from_environment({WORKER_CONFIG_VARIABLE: (tmp_path / "document").read_text()})
    assert (config.unit_id, config.slots, config.stop_grace_seconds) == (unit_id, 100, 7.0)
    assert config.executor_settings == SETTINGS
    assert isinstance(load_executor(config), ProcessExecutor)


def test_problem_of_a_running_agent_is_shown_as_its_reason(backend: OffloadBackend) -> None:
    [unit_id] = backend.start(1)
    unit = until(backend, lambda unit: unit.state is UnitState.RUNNING)
    assert unit.reason == "jobs wait for capacity"
    backend.stop([unit_id])
    assert until(backend, lambda unit: unit.state is UnitState.STOPPED).reason == "stopped"


@pytest.mark.parametrize("executor", ["scaler.testing.executors:Nothing", "scaler.nothing:Executor", "nothing", ":"])
def test_missing_executor_raises_a_clear_error(executor: str) -> None:
    config = OffloadConfig(scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", unit_id="u", executor=executor)
    with pytest.raises(ConfigError, match="cannot be loaded as module:factory"):
        load_executor(config)
