"""Modules uploaded by a client: available in its tasks and nested tasks, in their last version."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import SerializationError
from scaler.extensions.environment.upload import packed, read_upload
from scaler.ids import IdFactory
from scaler.offload.call import Call, pack_call, unpack_result
from scaler.offload.job import run_call
from scaler.protocol.messages import Outcome
from scaler.serialization import dump_function, load_value, to_payload
from scaler.serialization.arguments import dump_arguments
from scaler.worker.processor import context

WAIT_SECONDS = 30.0
Write = Callable[[str], ModuleType]


@pytest.fixture
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address()) as client:
        yield client


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a writer of the module `forecasts`, which this process can import and workers cannot."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # versions of the same size within a second would be equal

    def write(text: str) -> ModuleType:
        (tmp_path / "forecasts.py").write_text(text)
        sys.modules.pop("forecasts", None)
        importlib.invalidate_caches()
        return importlib.import_module("forecasts")

    yield write
    sys.modules.pop("forecasts", None)


MODULE = """
STEP = {step}

class Day:
    def __init__(self, number):
        self.number = number

def tomorrow(day):
    return Day(day.number + STEP)

def fail():
    raise KeyError("no data")
"""


def test_functions_and_classes_of_an_uploaded_module_round_trip(client: Client, write: Write, tmp_path: Path) -> None:
    forecasts = write(MODULE.format(step=1))
    with pytest.raises(SerializationError, match="No module named 'forecasts'"):
        client.submit(forecasts.tomorrow, forecasts.Day(1)).result(WAIT_SECONDS)
    client.upload(tmp_path / "forecasts.py")
    [day] = client.map(forecasts.tomorrow, [forecasts.Day(1)])
    assert type(day) is forecasts.Day
    assert day.number == 2
    with pytest.raises(KeyError) as error:
        client.submit(forecasts.fail).result(WAIT_SECONDS)
    assert 'raise KeyError("no data")' in str(error.value.__cause__)


def test_failed_import_in_a_task_gets_a_note_about_upload(client: Client) -> None:
    def load() -> None:
        importlib.import_module("no_such_module_here.part")

    error = client.submit(load).exception(WAIT_SECONDS)
    assert str(error) == "No module named 'no_such_module_here'"
    [note] = getattr(error, "__notes__", [])
    assert "has no module 'no_such_module_here': install it, or send your own code with client.upload('no_such" in note


def test_new_version_replaces_the_old_one_for_its_client_only(
    client: Client, cluster: SchedulerClusterCombo, write: Write, tmp_path: Path
) -> None:
    def step(_: int = 0) -> int:
        return int(importlib.import_module("forecasts").STEP)

    with Client(cluster.get_address()) as other:
        for number in (1, 2, 1):
            write(MODULE.format(step=number))
            client.upload(tmp_path / "forecasts.py")
            assert client.map(step, range(20)) == [number] * 20
            with pytest.raises(ModuleNotFoundError):
                other.submit(step).result(WAIT_SECONDS)
        write(MODULE.format(step=7))
        other.upload(tmp_path / "forecasts.py")
        # Tasks of both, concurrently on the same processors.
        futures = [each.submit(step) for _ in range(20) for each in (client, other)]
        assert [each.result(WAIT_SECONDS) for each in futures] == [1, 7] * 20


def test_task_running_as_a_job_imports_uploaded_modules(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "refusal", "")  # afterwards, this process must not be a job
    forecasts = write(MODULE.format(step=5))
    code = to_payload([packed(read_upload(tmp_path / "forecasts.py"))])
    call = Call(
        IdFactory(b"jobsjobs").task(),
        1,
        to_payload(dump_function(forecasts.tomorrow)),
        to_payload(dump_arguments((forecasts.Day(1),), {})[0]),
        code=code,
    )
    packed_call = pack_call(call)
    del sys.modules["forecasts"]
    sys.path.remove(str(tmp_path))
    try:
        result = unpack_result(run_call(packed_call))
        assert result.outcome is Outcome.SUCCESS
        assert load_value(result.parts).number == 6
        # The next call has no files.
        assert unpack_result(run_call(Call(call.task, 2, to_payload(dump_function(len)), call.arguments))).outcome
        assert "forecasts" not in sys.modules
    finally:
        sys.path.insert(0, str(tmp_path))
