"""Reads the history of a chaos run and reports violated promises. Pure.

Each future must have exactly one outcome: its own value, its own exception, or a failure that the history explains. A
task with `retries=0` must start at most once, no task may start after its outcome was delivered, and a task for which
`cancel` returned True must deliver nothing.

A task whose value stays on a host may start again until all tasks that use the value have an outcome, because its host
may lose the value. Such a user may also lose its own value and run again.

A task in a durable session may start again in two cases, both after its program was killed and the next program has
resubmitted its key. Either the session was in the memory of a scheduler that was also killed. Or the task had ended as
lost, and no program received that outcome: then resubmitting the key runs the task again, if a fault since its start
may have taken its worker.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.history import CallFailed, Cancelled, ClientGone, Delivered, Ended, Line, Started, Struck, Submitted

LOSSES = frozenset({"WorkerLostError", "ProcessorDiedError", "PoisonTaskError"})
"""Outcomes of tasks that used up their attempts."""
REFUSALS = frozenset({"LimitError", "TaskRejectedError"})
POISON_STARTS = 3
CANCELLED = "CancelledError"
UNREPORTED = "no worker has reported the task"
WORKERS_ENDED = frozenset({"kill", "stop", "long stop", "terminate"})
"""Faults after which a worker's tasks may be lost, if their targets are among the following."""
WORKER_PROCESSES = frozenset({"agent", "fork server", "processor", "manager", "launcher"})
CONNECTIONS_BROKEN = frozenset({"reset", "half-open", "reorder", "black hole", "long black hole"})
"""Faults with the same effect, if they affect the scheduler's proxy."""


@dataclass(slots=True)
class Verdict:
    """Result of a run. Each violation is a sentence that names the promise and the task."""

    strikes: Counter[str] = field(default_factory=Counter)
    """Faults by kind and target."""
    tasks: int = 0
    right: int = 0
    """Futures that ended with their own value or exception."""
    cancelled: int = 0
    exhausted: int = 0
    """Futures that were lost after the history shows all of their attempts."""
    doubtful: int = 0
    """The same, with one attempt missing in the history: it may have died before its first line."""
    excused: int = 0
    """Unfinished futures of clients that were killed or disconnected on purpose."""
    refused: int = 0
    """Futures of tasks that never started, and calls, refused by a limit such as a full disk."""
    forgotten: int = 0
    """Starts of tasks whose in-memory durable session was lost when scheduler and program were killed."""
    resubmitted: int = 0
    """Additional starts of durable-session tasks whose loss was reported to no program."""
    unreported: int = 0
    """Futures of retries=0 tasks in the memory of a killed scheduler and on no worker."""
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repeated_starts: int = 0
    """Starts of tasks beyond their first: the cost of the faults."""

    @property
    def violations(self) -> list[str]:
        found = self.lost + self.duplicated + self.wrong
        if self.doubtful > sum(self.strikes.values()):
            found = [*found, f"{self.doubtful} tasks ended as lost without enough starts, after fewer faults"]
        return found

    def figures(self) -> dict[str, int]:
        """Return the figures of the run by name."""
        return {
            "faults": sum(self.strikes.values()),
            "tasks": self.tasks,
            "right": self.right,
            "cancelled": self.cancelled,
            "exhausted": self.exhausted,
            "doubtful": self.doubtful,
            "excused": self.excused,
            "refused": self.refused,
            "forgotten": self.forgotten,
            "resubmitted": self.resubmitted,
            "unreported": self.unreported,
            "repeated starts": self.repeated_starts,
            "lost": len(self.lost),
            "duplicated": len(self.duplicated),
            "wrong": len(self.wrong),
        }


@dataclass(slots=True)
class _Task:
    submitted: Submitted | None = None
    starts: list[Started] = field(default_factory=list)
    outcomes: list[Delivered] = field(default_factory=list)
    cancels: list[Cancelled] = field(default_factory=list)


@dataclass(slots=True)
class _Strikes:
    """Times of faults that struck durable sessions and retries=0 tasks."""

    in_memory: bool
    """Whether the sessions are lost with the scheduler."""
    program: list[float] = field(default_factory=list)
    """Their program was killed."""
    scheduler: list[float] = field(default_factory=list)
    """The scheduler was killed."""
    worker: list[float] = field(default_factory=list)
    """A worker may have been lost."""

    def add(self, struck: Struck, *, is_program: bool) -> None:
        """Record a fault. is_program: the target was the program of a session, not another client."""
        targets = set(struck.target.split(" and "))
        if struck.fault == "kill" and is_program:
            self.program.append(struck.at)
        if struck.fault == "kill" and "scheduler" in targets:
            self.scheduler.append(struck.at)
        if (struck.fault in WORKERS_ENDED and targets & WORKER_PROCESSES) or (
            struck.fault in CONNECTIONS_BROKEN and "proxy of the scheduler" in targets
        ):
            self.worker.append(struck.at)

    def has_lost(self, submitted_at: float, ended_at: float) -> bool:
        """Return whether a task was in the memory of a killed scheduler."""
        return self.in_memory and any(submitted_at < time < ended_at for time in self.scheduler)

    def excuse(self, before: float, at: float, *, was_delivered: bool) -> str:
        """Return the name of the figure that counts a restart at this time, or an empty string if not excused."""

        def any_of(times: list[float]) -> bool:
            return any(before < time < at for time in times)

        if not any_of(self.program):
            return ""
        if self.in_memory and any_of(self.scheduler):
            return "forgotten"
        return "resubmitted" if any_of(self.worker) and not was_delivered else ""


def check(lines: Iterable[Line], sessions: Collection[str] = (), *, in_memory: bool = False) -> Verdict:
    """Return the verdict on the history of a finished run.

    sessions: clients that are the programs of durable sessions. in_memory: the sessions are lost with the scheduler.
    """
    verdict = Verdict()
    strikes = _Strikes(in_memory)
    is_other_client = False
    """The next client fault affects a client that has left permanently, and so no session's program."""
    tasks: dict[str, _Task] = defaultdict(_Task)
    gone: dict[str, float] = {}
    failed: list[CallFailed] = []
    for line in lines:
        match line:
            case Submitted(task=name):
                tasks[name].submitted = line
            case Started(task=name):
                tasks[name].starts.append(line)
            case Delivered(task=name):
                tasks[name].outcomes.append(line)
            case Cancelled(task=name):
                tasks[name].cancels.append(line)
            case ClientGone(client=name):
                gone.setdefault(name, line.at)
                is_other_client = True
            case CallFailed():
                failed.append(line)
            case Struck(fault=fault, target=target):
                verdict.strikes[f"{fault} {target}"] += 1
                strikes.add(line, is_program=target == "client" and not is_other_client)
                is_other_client = is_other_client and target != "client"
            case Ended():
                pass
    owners = {task.submitted.expects: name for name, task in tasks.items() if task.submitted is not None}
    needed_until = _needed_until(tasks)
    for name, task in tasks.items():
        verdict.repeated_starts += max(0, len({start.by for start in task.starts}) - 1)
        if task.submitted is not None:
            verdict.tasks += 1
            own = strikes if task.submitted.client in sessions else None
            _check_starts(verdict, name, task, task.submitted, own, needed_until.get(name, 0.0))
            failed_inputs = {
                tasks[each].outcomes[0].error
                for each in task.submitted.inputs
                if each in tasks and tasks[each].outcomes
            }
            _check_outcome(verdict, name, task, task.submitted, gone, owners, failed_inputs, strikes)
        elif task.outcomes:
            verdict.wrong.append(f"{name} was delivered and never submitted")
    for each in failed:
        if each.error.partition(":")[0] in REFUSALS:
            verdict.refused += 1
        elif each.at < gone.get(each.client, math.inf):
            verdict.lost.append(f"{each.call} of {each.client} raised {each.error}")
    return verdict


def _needed_until(tasks: Mapping[str, _Task]) -> dict[str, float]:
    """Return the time of the last outcome among the direct and indirect users of a task's value."""
    found: dict[str, float] = {}
    for name, task in sorted(tasks.items(), key=lambda item: -item[1].submitted.at if item[1].submitted else 0.0):
        if task.submitted is not None and task.submitted.inputs:
            ended_at = max(task.outcomes[0].at if task.outcomes else math.inf, found.get(name, 0.0))
            for each in task.submitted.inputs:
                found[each] = max(found.get(each, 0.0), ended_at)
    return found


def _check_starts(
    verdict: Verdict, name: str, task: _Task, submitted: Submitted, strikes: _Strikes | None, needed_until: float
) -> None:
    """strikes: faults that affected the task's durable session, or None for other tasks."""
    delivered_at, ended_at = (task.outcomes[0].at if task.outcomes else math.inf), math.inf
    if task.outcomes and _shown(task.outcomes[0]) == submitted.expects:
        # After a cancellation or the loss of its client, the task may still start on an unreachable worker.
        ended_at = max(delivered_at, needed_until)
    attempts = sorted({start.by: start.at for start in task.starts}.items(), key=lambda item: item[1])
    before = math.inf
    for _, at in attempts:
        if at > ended_at or (at > before and submitted.retries == 0):
            excuse = strikes.excuse(before, at, was_delivered=at > delivered_at) if strikes is not None else ""
            if excuse == "forgotten":
                verdict.forgotten += 1
                if at > delivered_at:  # the outcome was dropped with the task
                    delivered_at = ended_at = math.inf
            elif excuse:
                verdict.resubmitted += 1
            elif at > ended_at:
                after = at - ended_at
                verdict.duplicated.append(f"{name} started again {after:.3f} s after its outcome was delivered")
                return
            else:
                verdict.duplicated.append(
                    f"{name} may start once, but started {len(attempts)} times: {[by for by, _ in attempts]}"
                )
                return
        before = at


def _check_outcome(
    verdict: Verdict,
    name: str,
    task: _Task,
    submitted: Submitted,
    gone: Mapping[str, float],
    owners: dict[str, str],
    failed_inputs: Collection[str],
    strikes: _Strikes,
) -> None:
    """failed_inputs: errors of this task's inputs. The task must end with one of these errors."""
    if len(task.outcomes) > 1:
        verdict.duplicated.append(f"{name} has {len(task.outcomes)} outcomes")
    if not task.outcomes:
        if submitted.client in gone:
            verdict.excused += 1
        else:
            verdict.lost.append(f"{name} has no outcome after {len(task.starts)} starts")
        return
    outcome = task.outcomes[0]
    if any(cancel.said for cancel in task.cancels):
        if outcome.error == CANCELLED:
            verdict.cancelled += 1
        else:
            verdict.wrong.append(f"{name} was cancelled, and then delivered {outcome.error or 'a value'}")
        return
    shown = _shown(outcome)
    if shown == submitted.expects:
        verdict.right += 1
    elif not outcome.error:
        whose = owners.get(outcome.text)
        verdict.wrong.append(f"{name} has {'a wrong value' if whose is None else 'the value of ' + whose}")
    elif outcome.error in LOSSES and outcome.error in failed_inputs:
        verdict.exhausted += 1
    elif outcome.error in LOSSES:
        _check_loss(verdict, name, task, submitted, outcome, strikes)
    elif outcome.at >= gone.get(submitted.client, math.inf):
        verdict.excused += 1
    elif outcome.error in REFUSALS and not task.starts:
        verdict.refused += 1
    else:
        verdict.lost.append(f"{name} ended after {len(task.starts)} starts with {shown[:300]}")


def _shown(outcome: Delivered) -> str:
    return f"{outcome.error}: {outcome.text}" if outcome.error else outcome.text


def _check_loss(
    verdict: Verdict, name: str, task: _Task, submitted: Submitted, outcome: Delivered, strikes: _Strikes
) -> None:
    attempts = len({start.by for start in task.starts})
    needed = submitted.retries + 1
    if outcome.error == "PoisonTaskError":
        needed = min(needed, POISON_STARTS)
    if attempts >= needed:
        verdict.exhausted += 1
    elif not submitted.retries and UNREPORTED in outcome.text and strikes.has_lost(submitted.at, outcome.at):
        verdict.unreported += 1
    elif attempts == needed - 1:
        verdict.doubtful += 1
    else:
        verdict.lost.append(
            f"{name} with retries={submitted.retries} ended after {attempts} starts with"
            f" {outcome.error}: {outcome.text[:300]}"
        )
