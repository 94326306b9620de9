"""`logging` records of tasks: where they appear, from which level, and in which form."""

from __future__ import annotations

import json
import logging

import pytest

from scaler import Client, SchedulerClusterCombo

_log = logging.getLogger("market")


def priced(text: str) -> None:
    _log.debug("debug of %s", text)
    _log.info("price of %s", text)
    try:
        raise ValueError("closed")
    except ValueError:
        _log.exception("no price of %s", text)


def by_the_module(setting_up: bool) -> None:
    if setting_up:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s")
    logging.getLogger("library").addHandler(logging.NullHandler())
    logging.info("one")  # noqa: LOG015 (which sets `logging` up)
    logging.warning("two")  # noqa: LOG015 (as above)
    logging.getLogger("library").info("three")


def malformed() -> int:
    _log.warning("%d", "text")
    return 7


@pytest.fixture(scope="module")
def talking() -> object:
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="INFO", name="talking") as combo,
        Client(combo.get_address()) as client,
    ):
        yield client


def test_records_from_the_level_on_are_in_the_tasks_output_with_its_id(talking: Client) -> None:
    future = talking.submit(priced, "gold")
    future.result()
    lines = talking.logs(future).stderr.splitlines()
    assert f" task={future.task_id.hex()}] market: price of gold" in lines[0]
    assert " INFO task[" in lines[0]
    assert " ERROR task[" in lines[1]
    assert lines[1].endswith("market: no price of gold")
    assert any("ValueError: closed" in line for line in lines[2:])
    assert not any("debug" in line for line in lines)


@pytest.mark.parametrize("setting_up", [False, True])
def test_logging_records_keep_level_time_and_task(talking: Client, setting_up: bool) -> None:
    future = talking.submit(by_the_module, setting_up)
    future.result()
    lines = talking.logs(future).stderr.splitlines()
    ends = [(line.split()[1], line.rpartition("] ")[2]) for line in lines]
    assert ends == [("INFO", "root: one"), ("WARNING", "root: two"), ("INFO", "library: three")]
    assert all(line.startswith("20") and f"task={future.task_id.hex()}]" in line for line in lines)


def test_malformed_log_record_does_not_fail_a_task(talking: Client) -> None:
    future = talking.submit(malformed)
    assert future.result() == 7
    assert "Logging error" in talking.logs(future).stderr


def test_quiet_worker_shows_records_from_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        SchedulerClusterCombo(n_workers=1, logging_format="json", name="quiet") as combo,
        Client(combo.get_address()) as client,
    ):
        future = client.submit(priced, "tin")
        future.result()
        info, entry = map(json.loads, client.logs(future).stderr.splitlines())
        assert (info["level"], info["message"]) == ("INFO", "price of tin")
        assert entry["message"] == "no price of tin"
        assert entry["task_id"] == future.task_id.hex()
        assert (entry["level"], entry["component"], entry["logger"]) == ("ERROR", "task", "market")
        assert "ValueError: closed" in entry["traceback"]


def test_preload_hides_records_of_lower_levels() -> None:
    with (
        SchedulerClusterCombo(n_workers=1, preload="logging:disable(20)", name="hushed") as combo,
        Client(combo.get_address()) as client,
    ):
        future = client.submit(priced, "zinc")
        future.result()
        assert " ERROR task[" in client.logs(future).stderr.splitlines()[0]
