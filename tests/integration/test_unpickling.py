"""Only a cluster's processors and clients load pickles, although pickles pass through other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from scaler import Client
from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER, ReservedPorts
from tests.integration.settings_rig import Command, command

WAIT_SECONDS = 20.0
HOOK = """
import os, sys
def note(event, _):
    if event == "pickle.find_class":
        fd = os.open(os.environ["SCALER_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"%d\\n" % os.getpid())
        os.close(fd)
sys.addaudithook(note)
"""
"""Python raises this event before it imports a name in a pickle, and so before any of its code runs."""


class Bomb:
    """Loading its pickle creates a directory."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        import os  # noqa: PLC0415 (by name in the pickle)

        return os.makedirs, (self._marker, 0o777, True)


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Workers need not import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_only_processors_unpickle_functions_arguments_results_and_errors(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    notes = tmp_path / "notes"
    told = {"PYTHONPATH": str(tmp_path), "SCALER_TEST_NOTES": str(notes)}
    ports = ReservedPorts(PORTS_OF_A_SCHEDULER)
    address = ports.address()

    def fails(_: object) -> None:
        raise ValueError(Bomb(tmp_path / "from an error"))

    def makes(_: object) -> object:
        return b"x" * 100_000, Bomb(tmp_path / "from a result")

    with (
        command("scaler_scheduler", address, directory=tmp_path, **told) as scheduler,
        command("scaler_cluster", address, "-n", "1", directory=tmp_path, **told) as manager,
        command("scaler_ui", ports.address(2), "--port", "0", directory=tmp_path, **told) as page,
    ):
        for each in (scheduler, manager, page):
            each.addresses()
        ports.release()
        with Client(address) as client:
            argument = Bomb(tmp_path / "from an argument")
            name = "\\x80\\x05cposix\\nsystem\\n"
            client.submit_verbose(makes, args=(argument,), kwargs={}, name=name).result(WAIT_SECONDS)
            failed = client.submit_verbose(fails, args=(argument,), kwargs={}, retry_on=(KeyError,))
            with pytest.raises(ValueError, match="None"):
                failed.result(WAIT_SECONDS)
            assert client.get({"a": 1, "b": (makes, "a")}, ["b"])["b"][0] == b"x" * 100_000
            assert client.submit(len, client.send_object([argument] * 20_000)).result(WAIT_SECONDS) == 20_000
            assert "ValueError" in client.explain(failed)
            loaded = {int(line) for line in notes.read_text().split()}
            others = {scheduler.pid, manager.pid, page.pid}
            others |= {each.pid for each in scheduler.descendants() + manager.descendants() + page.descendants()}
            processors = _processors(manager)
            assert loaded & processors, "the hook sees loads in processors"
            assert not loaded & (others - processors)
    assert (tmp_path / "from an argument").is_dir(), "a processor has loaded it"


def _processors(manager: Command) -> set[int]:
    """Return the processes created by the fork servers of a manager's agents."""
    agents = psutil.Process(manager.pid).children()
    return {each.pid for agent in agents for server in agent.children() for each in server.children()}
