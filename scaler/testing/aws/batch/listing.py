"""ListJobs of the emulated Batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scaler.testing.aws.batch import values
from scaler.testing.aws.batch.jobs import Array, Job, State, millis, summarize
from scaler.testing.aws.batch.resources import JobQueue
from scaler.testing.aws.batch.values import JSON, Invalid, page

PAGE, FILTERED_PAGE = 1000, 100


def list_of(request: Mapping[str, Any], jobs: Iterable[Job | Array], queue: JobQueue) -> JSON:
    """List the jobs of a queue, without the children of arrays. jobs: newest first. Raises Invalid."""
    mine = (job for job in jobs if job.submission.queue is queue)
    filters = request.get("filters") or ()
    if not filters:
        return _answer(request, _in_state(request, mine), lambda job: -job.serial, PAGE)
    if len(filters) > 1:
        raise Invalid("only one filter can be used at a time")
    wanted = _filter(filters[0])
    return _answer(request, (job for job in mine if wanted(job)), lambda job: -job.serial, FILTERED_PAGE)


def list_children(request: Mapping[str, Any], array: Array) -> JSON:
    """List the children of an array, in the order of their indexes."""
    return _answer(request, _in_state(request, array.children), lambda job: getattr(job, "index", None) or 0, PAGE)


def _answer(
    request: Mapping[str, Any], found: Iterable[Job | Array], key: Callable[[Job | Array], int], most: int
) -> JSON:
    shown, token = page(found, key, request, most)
    return {"jobSummaryList": [summarize(job) for job in shown], **token}


def _in_state(request: Mapping[str, Any], jobs: Iterable[Job | Array]) -> Iterable[Job | Array]:
    state = State(values.one_of(request, "jobStatus", tuple(State), State.RUNNING))
    return (job for job in jobs if job.state is state)


def _filter(given: Mapping[str, Any]) -> Callable[[Job | Array], bool]:
    name, texts = values.need(given, "name"), values.need(given, "values")
    match name:
        case "JOB_NAME":
            return lambda job: any(_begins(text.lower(), job.submission.name.lower()) for text in texts)
        case "JOB_DEFINITION":
            return lambda job: any(
                _begins(text, job.submission.definition.name) or text == job.submission.definition.arn for text in texts
            )
        case "BEFORE_CREATED_AT":
            return lambda job: millis(job.submission.created_at) < int(texts[0])
        case "AFTER_CREATED_AT":
            return lambda job: millis(job.submission.created_at) > int(texts[0])
        case _:
            raise Invalid(f"the emulator has no filter {name}")


def _begins(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
