"""Exit classification: what the end of a job means for its task, and its display text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaler.protocol.messages import Outcome
from scaler.worker_manager.aws.calls import steady
from scaler.worker_manager.aws.containers import end_text
from scaler.worker_manager.aws_hpc.requests import EXIT_NO_CALL, EXIT_NO_RESULT

NO_REASON = "AWS Batch gives no reason; is the compute environment VALID, and large enough for the job?"
_LOST_HOST = ("Host EC2", "Your Spot Task was interrupted")
_TIMEOUT = "attempt duration exceeded timeout"
_NOT_STARTED = "Task failed to start"
_EXITED = "Essential container in task exited"


def reason_of(job: Mapping[str, Any]) -> str:
    """Return why a job ended or waits, by its last attempt; empty when Batch gives no reason."""
    container = _last_attempt(job).get("container") or {}
    status_reason = steady(str(job.get("statusReason") or ""))
    is_plain = status_reason.startswith(_EXITED) and "exitCode" in container
    return end_text(status_reason, [container], shown=not is_plain)


def classify_exit(job: Mapping[str, Any], timeout_minutes: int) -> tuple[Outcome, str]:
    """Return the outcome of a task whose job left no result, with a display text."""
    attempt = _last_attempt(job)
    container = attempt.get("container") or {}
    status_reason = str(job.get("statusReason") or "")
    code = container.get("exitCode")
    reason = reason_of(job) or "no reason given"
    where = f"the AWS Batch job {job['jobId']}"
    log = f"; its log stream is {container['logStreamName']}" if container.get("logStreamName") else ""
    if _TIMEOUT in status_reason:
        return Outcome.TIMED_OUT, f"{where} ran for longer than job_timeout_minutes ({timeout_minutes}) and was ended"
    if any(text.startswith(_LOST_HOST) for text in (status_reason, str(attempt.get("statusReason") or ""))):
        return Outcome.NOT_STARTED, f"{where} lost its host: {reason}"
    if code == EXIT_NO_CALL:
        text = f"{where} could not read its task: does its role allow that, and is the same scaler in its image?"
        return Outcome.NOT_STARTED, text + log
    if code == EXIT_NO_RESULT:
        return Outcome.WORKER_LOST, f"{where} could not write the result: does its role allow that?{log}"
    has_run = any(each.get("startedAt") for each in (job, *(job.get("attempts") or ())))
    if status_reason.startswith(_NOT_STARTED) or not has_run:
        return Outcome.NOT_STARTED, f"{where} did not start: {reason}"
    if job.get("isTerminated") or code is None:
        return Outcome.WORKER_LOST, f"{where} was ended: {reason}{log}"
    if code == 0:
        return Outcome.PROCESSOR_DIED, f"{where} ended without a result, with exit code 0{log}"
    return Outcome.PROCESSOR_DIED, f"{where} died: {reason}{log}"


def _last_attempt(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last attempt of a job, or the job itself, which has the same fields."""
    attempts = job.get("attempts") or [job]
    found: Mapping[str, Any] = attempts[-1]
    return found
