"""Reads the history of a chaos run and says which promises were broken. Pure.

What must hold of every future: exactly one outcome, which is its own value, its own exception, or a reason that the
history bears out. What must hold of every task: `retries=0` starts at most once, no task starts again after its
outcome was delivered, and a cancelled task whose `cancel` said True delivers nothing.

One thing may happen twice: a durable session without a state directory is in the scheduler's memory only. When
scheduler and program are killed, the next program submits tasks that nothing knows any more, and they start again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.history import CallFailed, Cancelled, ClientGone, Delivered, Ended, Line, Started, Struck, Submitted

LOSSES = frozenset({"WorkerLostError", "ProcessorDiedError", "PoisonTaskError"})
"""Outcomes of tasks that used up their attempts."""
REFUSALS = frozenset({"LimitError", "TaskRejectedError"})
POISON_STARTS = 3
CANCELLED = "CancelledError"


@dataclass(slots=True)
class Verdict:
    """What a run came to. A violation is a sentence that names the promise and the task."""

    strikes: Counter[str] = field(default_factory=Counter)
    """Faults by kind and target."""
    tasks: int = 0
    right: int = 0
    """Futures that ended with their own value or exception."""
    cancelled: int = 0
    exhausted: int = 0
    """Futures that ended as lost after the history shows all their attempts."""
    doubtful: int = 0
    """The same, where one attempt fewer shows than was needed: it may have died before its first line."""
    excused: int = 0
    """Futures of clients that were killed or shut out on purpose."""
    refused: int = 0
    """Futures of tasks that never started, and calls, because a limit was reached, such as a full disk."""
    forgotten: int = 0
    """Tasks of durable sessions in memory that started again because scheduler and program had been killed."""
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repeated_starts: int = 0
    """Starts of tasks beyond their first: what the faults cost."""

    @property
    def violations(self) -> list[str]:
        found = self.lost + self.duplicated + self.wrong
        if self.doubtful > sum(self.strikes.values()):
            found = [*found, f"{self.doubtful} tasks ended as lost without enough starts, after fewer faults"]
        return found

    def figures(self) -> dict[str, int]:
        """Return the figures of the run, by name."""
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


def check(lines: Iterable[Line], in_memory: Collection[str] = ()) -> Verdict:
    """Return the verdict about a history whose run is over.

    in_memory: clients whose durable sessions do not outlive the scheduler.
    """
    verdict = Verdict()
    kills: list[Struck] = []
    tasks: dict[str, _Task] = defaultdict(_Task)
    gone: set[str] = set()
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
                gone.add(name)
            case CallFailed():
                failed.append(line)
            case Struck(fault=fault, target=target):
                verdict.strikes[f"{fault} {target}"] += 1
                kills += [line] * (fault == "kill")
            case Ended():
                pass
    owners = {task.submitted.expects: name for name, task in tasks.items() if task.submitted is not None}
    for name, task in tasks.items():
        verdict.repeated_starts += max(0, len({start.by for start in task.starts}) - 1)
        if task.submitted is not None:
            verdict.tasks += 1
            _check_starts(verdict, name, task, task.submitted, kills if task.submitted.client in in_memory else ())
            _check_outcome(verdict, name, task, task.submitted, gone, owners)
        elif task.outcomes:
            verdict.wrong.append(f"{name} was delivered and never submitted")
    for each in failed:
        if each.error.partition(":")[0] in REFUSALS:
            verdict.refused += 1
        elif each.client not in gone:
            verdict.lost.append(f"{each.call} of {each.client} raised {each.error}")
    return verdict


def _was_forgotten(task: _Task, kills: Iterable[Struck]) -> bool:
    """Tell whether scheduler and program were killed between two starts that follow each other."""
    starts = sorted(start.at for start in task.starts)
    for before, after in pairwise(starts):
        killed = {name for kill in kills if before < kill.at < after for name in kill.target.split(" and ")}
        if killed >= {"scheduler", "client"}:
            return True
    return False


def _check_starts(verdict: Verdict, name: str, task: _Task, submitted: Submitted, kills: Sequence[Struck]) -> None:
    """kills: those that may have made a durable session in memory forget the task; none for other tasks."""
    if kills and _was_forgotten(task, kills):
        verdict.forgotten += 1
        return
    attempts = {start.by for start in task.starts}
    if submitted.retries == 0 and len(attempts) > 1:
        verdict.duplicated.append(f"{name} may start once, and started {len(attempts)} times: {sorted(attempts)}")
    if not task.outcomes or _shown(task.outcomes[0]) != submitted.expects:
        return  # after a cancellation, or when its client gave up, it may start on a worker that could not be told
    late = [start for start in task.starts if start.at > task.outcomes[0].at]
    if late:
        after = late[0].at - task.outcomes[0].at
        verdict.duplicated.append(f"{name} started again {after:.3f} s after its outcome was delivered")


def _check_outcome(
    verdict: Verdict, name: str, task: _Task, submitted: Submitted, gone: set[str], owners: dict[str, str]
) -> None:
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
    elif outcome.error in LOSSES:
        _check_loss(verdict, name, task, submitted, outcome)
    elif submitted.client in gone:
        verdict.excused += 1
    elif outcome.error in REFUSALS and not task.starts:
        verdict.refused += 1
    else:
        verdict.lost.append(f"{name} ended after {len(task.starts)} starts with {shown[:300]}")


def _shown(outcome: Delivered) -> str:
    return f"{outcome.error}: {outcome.text}" if outcome.error else outcome.text


def _check_loss(verdict: Verdict, name: str, task: _Task, submitted: Submitted, outcome: Delivered) -> None:
    attempts = len({start.by for start in task.starts})
    needed = submitted.retries + 1
    if outcome.error == "PoisonTaskError":
        needed = min(needed, POISON_STARTS)
    if attempts >= needed:
        verdict.exhausted += 1
    elif attempts == needed - 1:
        verdict.doubtful += 1
    else:
        verdict.lost.append(
            f"{name} with retries={submitted.retries} ended after {attempts} starts with"
            f" {outcome.error}: {outcome.text[:300]}"
        )
