"""`python -m scaler.worker_manager.aws_hpc.job`: runs one task in an AWS Batch job, and writes its result to S3."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from scaler.errors import ProtocolError, RefusedError, ScalerError
from scaler.interpreter import HASH_SEED, import_from_working_directory
from scaler.offload.call import Call, unpack_call
from scaler.offload.job import run_call
from scaler.process_state import begin_afresh
from scaler.serialization import Buffer
from scaler.worker.credential import take_credential
from scaler.worker_manager.aws import AwsSettings
from scaler.worker_manager.aws.calls import AwsClient, AwsError
from scaler.worker_manager.aws_hpc import requests
from scaler.worker_manager.aws_hpc.objects import KEY_BYTES, call_of, restored, signed

ATTEMPTS = 6  # no caller of this program retries
READ_TIMEOUT_SECONDS = 60.0
_PID = os.getpid()


def main() -> int:
    begin_afresh()
    take_credential(HASH_SEED)
    signal.signal(signal.SIGTERM, _terminated)
    environment = dict(os.environ)
    os.environ.pop(requests.JOB_SPEC_VARIABLE, None)  # hidden from the task
    try:
        spec = requests.JobSpec.from_environment(environment)
        index = int(environment.get(requests.INDEX_VARIABLE, "0"))
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        settings = AwsSettings(aws_region=spec.region, aws_endpoint_url=endpoint)
        s3 = AwsClient(settings, "s3", read_timeout_seconds=READ_TIMEOUT_SECONDS, attempts=ATTEMPTS)
        key, call = read_call(spec, s3, index)
    except (ScalerError, ValueError) as error:
        _say(f"the task cannot be read and did not start: {error}")
        return requests.EXIT_NO_CALL
    import_from_working_directory()
    result = run_call(call)
    del call
    try:
        data = signed(key, spec.number, index, result)
        s3.call("PutObject", Bucket=spec.bucket, Key=spec.result_key(index), Body=data)
    except AwsError as error:
        _say(f"the task ran, but its result of size {len(result)} cannot be written: {error}")
        return requests.EXIT_NO_RESULT
    return 0


def read_call(spec: requests.JobSpec, s3: AwsClient, index: int) -> tuple[bytes, Buffer | Call]:
    """Return the session's key and the job's call, as bytes if this version cannot parse it. Raises ScalerError."""
    place = {"Bucket": spec.bucket, "Key": spec.call_key}
    data = call_of(lambda begin, end: s3.read(**place, Range=f"bytes={begin}-{end - 1}"), index, requests.FIRST_BYTES)
    key, packed = data[:KEY_BYTES], memoryview(data)[KEY_BYTES:]
    try:
        call = unpack_call(packed)
    except (ProtocolError, RefusedError):
        return key, packed  # `run_call` reports the problem as the result
    return key, restored(call, lambda name: s3.read(Bucket=spec.bucket, Key=requests.object_key(spec.keys, name)))


def _terminated(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _PID:  # in a process forked by the task
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _say("SIGTERM: AWS Batch ends this job (it was cancelled, ran for too long, or its host is reclaimed)")
    _end(requests.EXIT_TERMINATED)


def _say(text: str) -> None:
    os.write(2, f"scaler job: {text}\n".encode("utf-8", "replace"))  # not sys.stderr: tasks may replace or close it


def _end(code: int) -> None:
    """Exit immediately: threads and exit handlers of the task must not delay the end of the job."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # the task has closed or replaced it
            _say(f"the last output of the task is lost: {error}")
    os._exit(code)


if __name__ == "__main__":
    _end(main())
