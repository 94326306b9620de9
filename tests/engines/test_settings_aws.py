"""Settings of AWS worker managers, as seen in requests to ECS, AWS Batch, and S3."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scaler.cli import run_command
from scaler.errors import ScalerError
from scaler.testing.aws import AwsEmulator
from scaler.worker_manager.aws.calls import AwsClient
from scaler.worker_manager.aws_hpc import executor as batch
from scaler.worker_manager.aws_hpc.executor import BatchExecutor
from scaler.worker_manager.aws_raw_ecs.backend import EcsBackend
from tests.engines.clouds_rig import ecs_config, furnish_account, hpc_config
from tests.engines.hpc_rig import rig_of
from tests.waiting import within

WAIT_SECONDS = 15.0
LARGE_BYTES = 100_000
"""More than fits into a job's request."""


@pytest.fixture
def aws(aws: AwsEmulator, monkeypatch: pytest.MonkeyPatch) -> AwsEmulator:
    furnish_account(aws, monkeypatch)
    return aws


def test_jobs_match_the_managers_settings(aws: AwsEmulator) -> None:
    aws.batch.furnish("their-queue", "their-definition")
    s3 = AwsClient(hpc_config(aws_endpoint_url=aws.endpoint_url), "s3")
    s3.call("CreateBucket", Bucket="their-bucket")
    s3.close()
    told = {
        "job_queue": "their-queue",
        "job_definition": "their-definition",
        "s3_bucket": "their-bucket",
        "s3_prefix": "below/here",
        "name": "nightly",
        "job_timeout_minutes": 7,
    }
    with rig_of(aws, **told) as rig:
        rig.run(rig.call(lambda _: signal.pause(), os.urandom(LARGE_BYTES)))
        keys = aws.s3.keys("their-bucket")
        assert keys
        assert all(key.startswith("below/here/burst/") for key in keys)
        named = [{"name": "JOB_NAME", "values": ["nightly-*"]}]
        found: list[dict[str, Any]] = []

        def is_listed() -> bool:
            found[:] = aws.batch.call("ListJobs", {"jobQueue": "their-queue", "filters": named})["jobSummaryList"]
            return bool(found)

        assert within(WAIT_SECONDS, is_listed)
        [job] = aws.batch.call("DescribeJobs", {"jobs": [found[0]["jobId"]]})["jobs"]
        assert "job-definition/their-definition:" in job["jobDefinition"]
        assert job["timeout"] == {"attemptDurationSeconds": 7 * 60}


@contextmanager
def notebook_of_requests() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a service that refuses everything, and the credentials of its requests."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Authorization"])
            body = b'{"__type": "AccessDeniedException", "message": "no"}'
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("kind", "service"), [("aws_raw_ecs", "ecs"), ("aws_hpc", "batch")])
def test_aws_is_called_with_the_configured_region_and_profile(
    kind: str, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("[theirs]\naws_access_key_id = THEIRS\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHERS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    with notebook_of_requests() as (address, seen):
        told = {"aws_region": "eu-west-3", "aws_profile": "theirs", "aws_endpoint_url": address}
        with suppress(ScalerError):
            if kind == "aws_raw_ecs":
                EcsBackend(ecs_config(**told)).list()
            else:
                BatchExecutor(hpc_config(**told)).start(lambda _: None)
    assert seen
    for authorization in seen:
        key, _, region, used, _ = authorization.partition("Credential=")[2].partition(",")[0].split("/")
        assert (key, region, used) == ("THEIRS", "eu-west-3", service)


@pytest.mark.parametrize(
    ("limit", "jobs", "slots"),
    [(-1, 100, 100), (-1, 7, 7), (5, 7, 5), (9, 7, 7)],
    ids=["default", "jobs", "limit", "both"],
)
def test_concurrent_jobs_never_exceed_the_configured_limit(limit: int, jobs: int, slots: int) -> None:
    backend = batch.make_backend(hpc_config(max_task_concurrency=limit, max_concurrent_jobs=jobs))
    assert (backend.capacity.max_units, backend.capacity.max_slots) == (1, slots)
    backend.close()


def test_rejects_a_service_other_than_batch(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("-wmi", "m", "--job-queue", "q", "--job-definition", "d", "--s3-bucket", "bucket", "--backend", "slurm")
    assert run_command("scaler_worker_manager", ["aws_hpc", "tcp://127.0.0.1:1", *flags]) == 2
    assert "--backend = 'slurm': must be 'batch'" in capsys.readouterr().err
