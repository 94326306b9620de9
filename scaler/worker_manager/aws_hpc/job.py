"""`python -m scaler.worker_manager.aws_hpc.job`: run one task inside an AWS Batch job, and leave its result in S3."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

from scaler.errors import ScalerError
from scaler.worker.job import run_call
from scaler.worker.processor.calling import import_from_working_directory
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError
from scaler.worker_manager.aws_hpc.bundle import call_of, compress
from scaler.worker_manager.aws_hpc.requests import (
    EXIT_NO_CALL,
    EXIT_NO_RESULT,
    EXIT_TERMINATED,
    FIRST_BYTES,
    INDEX_VARIABLE,
    JOB_SPEC_VARIABLE,
    JOB_VARIABLE,
    PARAMETER,
    JobSpec,
    from_text,
)

ATTEMPTS = 6
"""Nothing above this program retries."""
READ_TIMEOUT_SECONDS = 60.0
_PID = os.getpid()


def main() -> int:
    """Run the task that the environment names. Returns the exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    environment = dict(os.environ)
    os.environ.pop(JOB_SPEC_VARIABLE, None)  # not for the task
    try:
        spec = JobSpec.from_environment(environment)
        index = int(environment.get(INDEX_VARIABLE, "0"))
        s3 = _client(spec, "s3", environment)
        call = _call(spec, index, s3, environment)
    except (ScalerError, ValueError) as error:
        _say(f"the task cannot be read, and did not start: {error}")
        return EXIT_NO_CALL
    import_from_working_directory()
    result = compress(run_call(call))
    del call
    try:
        s3.call("PutObject", Bucket=spec.bucket, Key=f"{spec.results}{index}", Body=result)
    except AwsError as error:
        _say(f"the task ran, and its result of size {len(result)} cannot be written: {error}")
        return EXIT_NO_RESULT
    return 0


def _call(spec: JobSpec, index: int, s3: AwsClient, environment: Mapping[str, str]) -> bytes:
    """Return the packed call. Raises ScalerError."""
    if spec.input_from == "s3":
        place = {"Bucket": spec.bucket, "Key": spec.input}
        return call_of(lambda begin, end: s3.read(**place, Range=f"bytes={begin}-{end - 1}"), index, FIRST_BYTES)
    data = from_text(spec.input if spec.input_from == "variable" else _parameter(spec, environment))
    return call_of(lambda begin, end: data[begin:end], index, len(data))


def _parameter(spec: JobSpec, environment: Mapping[str, str]) -> str:
    """Return the call that is a parameter of this job. Raises AwsError."""
    batch = _client(spec, "batch", environment)
    job_id = environment.get(JOB_VARIABLE, "")
    jobs = batch.call("DescribeJobs", jobs=[job_id])["jobs"]
    if not jobs or PARAMETER not in jobs[0].get("parameters", {}):
        raise AwsError(f"AWS Batch shows no parameter {PARAMETER!r} of the job {job_id!r}", "refused")
    return str(jobs[0]["parameters"][PARAMETER])


def _client(spec: JobSpec, service: str, environment: Mapping[str, str]) -> AwsClient:
    endpoint = environment.get(f"AWS_ENDPOINT_URL_{service.upper()}") or environment.get("AWS_ENDPOINT_URL")
    settings = AwsSettings(aws_region=spec.region, aws_endpoint_url=endpoint)
    return AwsClient(settings, service, read_timeout_seconds=READ_TIMEOUT_SECONDS, attempts=ATTEMPTS)


def _terminated(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _PID:  # a process that the task has forked
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _say("SIGTERM: AWS Batch ends this job (it was cancelled, ran for too long, or its host is taken away)")
    _end(EXIT_TERMINATED)


def _say(text: str) -> None:
    os.write(2, f"scaler job: {text}\n".encode("utf-8", "replace"))  # not sys.stderr: tasks may replace or close it


def _end(code: int) -> None:
    """Exit now: threads and handlers that the task has left must not keep the job."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # the task has closed or replaced it
            _say(f"the last output of the task is lost: {error}")
    os._exit(code)


if __name__ == "__main__":
    _end(main())
