"""A worker in a container determines its unit of the manager."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scaler.config.worker import WorkerConfig
from scaler.errors import ConfigError
from scaler.extensions.units import unit_id
from scaler.extensions.units.unit_id import learn_unit_id

TASK = (
    b'{"Cluster": "default", '
    b'"TaskARN": "arn:aws:ecs:us-east-1:123456789012:task/default/158d1c8083dd49d6b527399fd6414f5c"}'
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_id, "PAUSE_SECONDS", 0.0)


def config(unit_id_from: str, name: str = "") -> WorkerConfig:
    return WorkerConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", unit_id=name, unit_id_from=unit_id_from
    )


@contextmanager
def metadata(*answers: tuple[int, bytes]) -> Iterator[str]:
    """Serve these answers in order, repeating the last one."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status if self.path == "/v4/abc/task" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v4/abc"
        finally:
            server.shutdown()
            thread.join()


def test_unit_id_may_be_given_but_not_empty() -> None:
    assert learn_unit_id(config("unit_id", "box-1"), {}) == "box-1"
    with pytest.raises(ConfigError, match="unit_id is empty"):
        learn_unit_id(config("unit_id"), {})


def test_unit_id_in_an_ecs_task_is_the_last_part_of_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata((200, TASK)) as url:
        found = learn_unit_id(config("ecs"), {"ECS_CONTAINER_METADATA_URI_V4": url})
    assert found == "158d1c8083dd49d6b527399fd6414f5c"


def test_waits_for_metadata_that_is_not_available_yet() -> None:
    with metadata((503, b""), (200, b"not yet"), (200, b"{}"), (200, TASK)) as url:
        assert learn_unit_id(config("ecs"), {"ECS_CONTAINER_METADATA_URI_V4": url}).startswith("158d")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, b""), "HTTP Error 500"),
        ((200, b"[]"), "the answer has no TaskARN"),
        ((200, b'{"TaskARN": 5}'), "the answer has no TaskARN"),
    ],
)
def test_failed_metadata_lookup_is_reported(answer: tuple[int, bytes], why: str) -> None:
    with (
        metadata(answer) as url,
        pytest.raises(ConfigError, match=f"cannot determine the ECS task from {url}/task: {why}"),
    ):
        learn_unit_id(config("ecs"), {"ECS_CONTAINER_METADATA_URI_V4": url})


def test_unit_id_is_read_from_the_named_variable() -> None:
    assert learn_unit_id(config("env:SLURM_JOB_ID"), {"SLURM_JOB_ID": "4711"}) == "4711"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("ecs", "'ecs': ECS_CONTAINER_METADATA_URI_V4 is not set, so this worker runs elsewhere"),
        ("env:SLURM_JOB_ID", "'env:SLURM_JOB_ID': SLURM_JOB_ID is not set"),
        ("env:", "'env:': must be unit_id, ecs or env:NAME"),
        ("pigeon", "'pigeon': must be unit_id, ecs or env:NAME"),
    ],
)
def test_missing_variable_is_an_error(where: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        learn_unit_id(config(where), {})
