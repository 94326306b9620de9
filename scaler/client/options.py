"""Task options: `OptionKeywords`, as users pass them, and `Options`, their validated form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from scaler.capabilities import task_needs
from scaler.errors import UsageError
from scaler.interpreter import ENVIRONMENT_VARIABLE
from scaler.needs import NEAR
from scaler.plugins import part_of
from scaler.protocol.messages import MAX_LABEL_CHARACTERS, MAX_TAGS
from scaler.serialization import describe, dump_retry_on
from scaler.texts import shown

MAX_SECONDS = 1e9
"""Maximum duration, because some system clocks cannot count further."""
DEFAULT_RETRIES = 3
MAX_RETRIES = 10_000
DEFAULT_GRACE_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL for a preemptible task; equal to the grace period of a stopping worker's tasks."""
MAX_GRACE_SECONDS = 3600.0
MAX_DELAYS = 64
"""Maximum number of retry delays per task. The last delay applies to all further attempts."""

RetryOn = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], object]
"""Exception types, or a predicate that takes the exception and runs on the worker."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """Delays between attempts that double with each attempt.

    Args:
        base: first delay in seconds.
        cap: maximum delay in seconds.
        jitter: maximum share of each delay that is subtracted at random.
    """

    base: float = 1.0
    cap: float = 60.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_number("base of Exponential", self.base, 0, MAX_SECONDS, ": seconds")
        check_number("cap of Exponential", self.cap, self.base, MAX_SECONDS, ": seconds, and base or more")
        check_number("jitter of Exponential", self.jitter, 0, 1, ": random share to subtract")

    def delays(self) -> tuple[float, ...]:
        """Return the delays before each retry, without jitter. The last delay applies to all further retries."""
        found = [float(self.base)]
        while 0 < found[-1] < self.cap and len(found) < MAX_DELAYS:
            found.append(min(float(self.cap), 2.0 * found[-1]))
        return tuple(found)


RetryDelay = float | Exponential | Callable[[int], float]
"""Seconds, `Exponential(...)`, or a function of the number of the failed attempt (from 1)."""

Environment = str | os.PathLike[str] | Sequence[str]
"""Path of a requirements.txt or uv.lock, requirements, or "auto"."""


class TaskKeywords(TypedDict, total=False):
    """Task options as keyword arguments, except options that share a name with an argument of `Client`."""

    priority: int
    retries: int
    retry_on: RetryOn
    retry_delay: RetryDelay | None
    losses: int | None
    capabilities: Mapping[str, float | None] | None
    memory: float | str | None
    cpus: float | None
    gpu: float | None
    near: str | None
    resources: Mapping[str, float] | Iterable[str] | None
    limits: Mapping[str, float] | Iterable[str] | None
    tags: str | Iterable[str]
    expected_seconds: float
    preemptible: bool | float


class OptionKeywords(TaskKeywords, total=False):
    """Task options as keyword arguments, described in `Client.submit_verbose`."""

    timeout_seconds: float
    name: str | None
    profiling: bool | None
    stream_output: bool | None
    environment: Environment | None


class Options(NamedTuple):
    """Options in the form that tasks carry. Hashable, because tasks with equal options share a Spec."""

    needs: tuple[tuple[str, float], ...] = ()
    priority: int = 0
    retries: int = DEFAULT_RETRIES
    retry_on: bytes = b""
    timeout_seconds: float = 0.0
    profiling: bool = False
    stream_output: bool = False
    deliver: bool = True
    name: str = ""
    expected_seconds: float = 0.0
    call: int = 0
    losses: int = 0
    retry_delays: tuple[float, ...] = ()
    retry_jitter: float = 0.0
    tags: tuple[str, ...] = ()
    preemptible: float = 0.0
    context: str = ""
    environment: bytes = b""
    """Requirements in the packed form of the `environment` extension; empty: the worker's packages."""
    owner: object = None

    @property
    def max_losses(self) -> int:
        """Maximum reruns after a lost worker or process."""
        return self.losses - 1 if self.losses and self.retries else self.retries


DEFAULTS = Options()
NAMES = frozenset({*TaskKeywords.__annotations__, *OptionKeywords.__annotations__})


def options_of(given: OptionKeywords, verb: str, base: Options = DEFAULTS) -> Options:
    """Return a call's validated options, described in `Client.submit_verbose`. base: contains the client's defaults.
    Raises TypeError for an unknown option, and UsageError.
    """
    _check_names(given, verb)
    retries, losses, delay = given.get("retries", DEFAULT_RETRIES), given.get("losses"), given.get("retry_delay")
    priority, name, capabilities = given.get("priority", 0), given.get("name"), given.get("capabilities")
    timeout_seconds, expected_seconds = given.get("timeout_seconds", 0.0), given.get("expected_seconds", 0.0)
    check_integer("priority", priority, -(2**31), 2**31 - 1)
    check_integer("retries", retries, 0, MAX_RETRIES)
    if losses is not None:
        check_integer("losses", losses, 0, MAX_RETRIES)
        if losses and not retries:
            raise UsageError(f"losses is {losses}, but retries=0 starts a task at most once: leave one out")
    check_seconds("timeout_seconds", timeout_seconds, "means no limit")
    check_seconds("expected_seconds", expected_seconds, "says nothing")
    if capabilities is not None and not isinstance(capabilities, Mapping):
        example = '{"gpu": 1, "linux": None}'
        raise UsageError(f"capabilities is {shown(capabilities)}, but must be a dict such as {example}")
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name is {shown(name)}, but must be a string")
    near = () if given.get("near") is None else ((NEAR + checked_label("near", given["near"]), 0.0),)
    profiling, stream_output = given.get("profiling"), given.get("stream_output")
    for option, value in (("profiling", profiling), ("stream_output", stream_output)):
        if value not in (None, False, True):
            raise UsageError(f"{option} is {shown(value)}, but must be True, False, or None")
    builtin = given.get("memory"), given.get("cpus"), given.get("gpu")
    return Options(
        needs=tuple(
            sorted([*task_needs(capabilities, *builtin, given.get("resources"), given.get("limits")).items, *near])
        ),
        priority=priority,
        retries=retries,
        retry_on=dump_retry_on(given.get("retry_on", ())),
        timeout_seconds=float(timeout_seconds),
        profiling=base.profiling if profiling is None else profiling,
        stream_output=base.stream_output if stream_output is None else stream_output,
        name=name or "",
        expected_seconds=float(expected_seconds),
        losses=0 if losses is None else losses + 1,
        retry_delays=_delays(delay, retries),
        retry_jitter=float(delay.jitter) if isinstance(delay, Exponential) else 0.0,
        tags=_checked_tags(given.get("tags", ())),
        preemptible=_grace_seconds(given.get("preemptible", False), retries),
        environment=base.environment if given.get("environment") is None else requirements_of(given["environment"]),
        owner=base.owner,
    )


def requirements_of(environment: object, *, inherits: bool = False) -> bytes:
    """Return packed requirements. inherits: None means the requirements of this processor. Raises UsageError."""
    if environment is None:
        path = os.environ.get(ENVIRONMENT_VARIABLE) if inherits else None
        return Path(path).read_bytes() if path else b""
    return cast("bytes", part_of("environment", "listed", "the option environment")(environment))


def _check_names(given: OptionKeywords, verb: str) -> None:
    if unknown := [name for name in given if name not in NAMES]:
        from difflib import get_close_matches  # noqa: PLC0415 (only for an error message)

        known = ", ".join(sorted(NAMES))
        near = get_close_matches(unknown[0], NAMES, n=1)
        hint = f"did you mean {near[0]!r}? The" if near else "the"
        if unknown[0] == "replicas":
            hint = "client.persist(future) keeps a second copy of a result; the"
        text = f"{verb} got an unexpected keyword argument {unknown[0]!r}; {hint} task options are {known}"
        raise TypeError(text)


def check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {shown(value)}, but must be an integer {limits}")


def iterated(what: str, values: object) -> Iterator[Any]:
    try:
        return iter(cast("Iterable[Any]", values))
    except TypeError:
        if hasattr(type(values), "__iter__"):  # the TypeError came from __iter__
            raise
        raise UsageError(f"{what} is {shown(values)}, but must be iterable, such as a list") from None


def check_call(args: object, kwargs: object) -> None:
    if not isinstance(args, Iterable) or isinstance(args, str | bytes | Mapping):
        raise UsageError(f"args is {args!r}, but must be a tuple of positional arguments such as ({args!r},)")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise UsageError(f"kwargs is {kwargs!r}, but must be a dict of keyword arguments")


def check_number(name: str, value: object, least: float, most: float, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UsageError(f"{name} is {shown(value)}, but must be from {least:g} to {most:g}{meaning}")


def check_seconds(name: str, value: object, zero: str) -> None:
    """Raise UsageError unless the value is a number of seconds. zero: meaning of 0, for the error text."""
    check_number(name, value, 0, MAX_SECONDS, f"; 0 {zero}")


def checked_label(what: str, text: object) -> str:
    if not isinstance(text, str) or not text or len(text) > MAX_LABEL_CHARACTERS or not text.isprintable():
        limits = f"a string of 1 to {MAX_LABEL_CHARACTERS} printable characters"
        raise UsageError(f"{what} is {shown(text)}, but must be {limits}")
    return text


def _delays(delay: object, retries: int) -> tuple[float, ...]:
    if delay is None:
        return ()
    if isinstance(delay, Exponential):
        return delay.delays()
    if not callable(delay):
        check_seconds("retry_delay", delay, "means an immediate retry")
        assert isinstance(delay, int | float), "it was checked"
        return (float(delay),)
    found: list[float] = []
    for attempt in range(1, min(retries, MAX_DELAYS) + 1):
        try:
            seconds = delay(attempt)
        except Exception as error:
            raise UsageError(f"retry_delay({attempt}) raised {describe(error)}") from error
        check_seconds(f"retry_delay({attempt})", seconds, "means an immediate retry")
        found.append(float(seconds))
    return tuple(found)


def _grace_seconds(preemptible: object, retries: int) -> float:
    """Return the seconds from SIGTERM to SIGKILL for a preemptible task, or 0."""
    if preemptible is False:
        return 0.0
    if preemptible is True:
        seconds = DEFAULT_GRACE_SECONDS
    elif isinstance(preemptible, int | float) and 0 < preemptible <= MAX_GRACE_SECONDS:
        seconds = float(preemptible)
    else:
        limits = f"True, False, or a grace period above 0 and up to {MAX_GRACE_SECONDS:g} seconds"
        raise UsageError(f"preemptible is {shown(preemptible)}, but must be {limits}")
    if not retries:
        raise UsageError(
            "preemptible tasks start again after a stop, but retries=0 starts a task at most once: leave one out"
        )
    return seconds


def _checked_tags(tags: object) -> tuple[str, ...]:
    given = (tags,) if isinstance(tags, str) else tags
    if not isinstance(given, Iterable):
        raise UsageError(f"tags is {shown(tags)}, but must be a string or several strings")
    found = tuple(dict.fromkeys(checked_label("a tag", each) for each in given))
    if len(found) > MAX_TAGS:
        raise UsageError(f"a task has at most {MAX_TAGS} tags, not {len(found)}")
    return found


def with_tag(options: Options, tag: object) -> Options:
    return options._replace(tags=_checked_tags((*options.tags, checked_label("tag", tag))))
