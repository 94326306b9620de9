"""Questions about a cluster that a command answers and ends: `scaler explain`, `scaler logs` and `scaler trace`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from scaler.config.addresses import local_address
from scaler.config.files import SCHEDULER, TOP, ConfigFile, read_file
from scaler.config.flags import flags_parser, parse_flags
from scaler.config.load import Sources, resolve
from scaler.config.servers import SchedulerConfig
from scaler.config.top import TopConfig
from scaler.errors import UsageError

Verb = Literal["explain", "logs", "trace"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_PURPOSES: Mapping[Verb, tuple[str, str]] = {
    "explain": ("TASK_ID", "Say why a task waits, or what became of it."),
    "logs": ("TASK_ID", "Print what a task has printed, to the same streams."),
    "trace": ("FILE", "Write the timeline of a cluster as a trace that Perfetto and Chrome show; FILE - is stdout."),
}
"""The first argument, and what it is for."""


@dataclass(frozen=True, slots=True)
class Question:
    """What such a command is told: whom to ask, and about what."""

    config: TopConfig
    verb: Verb
    subject: str
    """A task's id in hex; of `trace` the file to write."""
    seconds: float = 0.0
    """Of `trace`: how long it watches before it writes."""


def parse_question(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Question:
    """Return what `scaler explain`, `scaler logs` and `scaler trace` are told. Raises UsageError."""
    verb = next(verb for verb in VERBS if program.endswith(verb))
    subject, purpose = _PURPOSES[verb]
    parser = flags_parser(program, TOP, TopConfig, purpose)
    parser.usage = f"{program} {subject} [-c FILE] [settings] [ADDRESS]"
    if verb == "trace":
        text = "how long it watches before it writes; otherwise what the scheduler remembers is written at once"
        parser.add_argument("--seconds", type=float, metavar="SECONDS", default=argparse.SUPPRESS, help=text)
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "-"):
        parser.parse_known_args([text for text in arguments if text in ("-h", "--help", "--version")])
        raise UsageError(f"give the {subject} first: {program} {subject} ADDRESS")
    line = parse_flags(parser, arguments[1:])
    seconds = line.flags.pop("seconds", 0.0)
    if not (isinstance(seconds, float) and math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"--seconds {seconds}: give a number of at least 0")
    file = None if line.file is None else read_file(line.file)
    sources = Sources(
        TOP,
        flags=line.flags,
        environment=environment,
        file=line.file or "",
        table=file.top if file else None,
        implied=_address_in(file, environment),
    )
    return Question(resolve(TopConfig, sources), verb, arguments[0], seconds)


def _address_in(file: ConfigFile | None, environment: Mapping[str, str]) -> Mapping[str, object]:
    """Return where the scheduler of a file serves its monitors: who starts a file can ask by the same file."""
    if file is None or file.scheduler is None:
        return {}
    scheduler = resolve(
        SchedulerConfig, Sources(SCHEDULER, environment=environment, file=file.path, table=file.scheduler)
    )
    return {"monitor_address": local_address(scheduler.monitor_address)}
