"""Tests of the tests: faults planted in the core one at a time, and the check that detects each.

Each entry names the broken rule and words of the assertion that detects the fault. An undetected fault means that an
invariant or a promise is not checked.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from scaler.extensions.resources.stocks import CountedClaims, GpuStock
from scaler.scheduler.core.cluster import ObjectTable, WorkerPools
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.placement import Placement
from scaler.scheduler.core.resources import Claims
from scaler.scheduler.core.state import Worker
from scaler.scheduler.core.tasks import Tasks
from scaler.testing.simulation import Chances, World
from tests.short_forms import short_form
from tests.simulation import test_journals, test_limits, test_persisted, test_restarts, test_whole
from tests.simulation.planting import Fault, plant

ROUGH = Chances(
    processor_deaths=0.03,
    once=0.3,
    worker_crashes_per_second=2.0,
    worker_freezes_per_second=1.5,
    client_crashes_per_second=0.3,
    client_freezes_per_second=0.0,
    cancels=0.1,
    dependencies=0.5,
    stored_results=0.2,
    freeze_seconds=900.0,
)
LOYAL = replace(ROUGH, client_crashes_per_second=0.0)
"""A world in which clients wait forever, because only they notice a forgotten task."""
SEEDS = range(4)

FAULTS: dict[str, tuple[type, str, str, str, str]] = {
    # name: (class, method, true line, faulty line, words of the assertion that detects it)
    "a task that was only queued on a lost worker is forgotten": (
        Tasks,
        "worker_lost",
        "unstarted.append(task)",
        "unstarted.extend([task] * may_have_run)",
        "recalled from a lost worker|is on a lost worker|not among its worker's tasks",
    ),
    "a task is retried once too often": (
        Tasks,
        "_retry",
        "if errors.losses >= limit:",
        "if errors.losses > limit:",
        "more losses than allowed|may start once",
    ),
    "a worker's load is not reduced when a task leaves": (
        Worker,
        "release",
        "self.count_function(task.group.timing, -1)",
        "pass",
        "tasks by function",
    ),
    "a dependent becomes ready one dependency too early": (
        Tasks,
        "_end_dependents",
        "if not state.missing:",
        "if state.missing <= 1:",
        "^b['\"]|counted as waiting|no longer waiting|does not appear exactly once in its queue|counts 0 uses",
    ),
    "a value is kept after its last use": (
        Tasks,
        "_drop_references",
        "retained.uses -= 1",
        "retained.uses -= 0",
        "counts .* uses",
    ),
    "a value is dropped while a dependent still needs it": (
        Tasks,
        "_drop_references",
        "if not (retained.uses or retained.unacknowledged):",
        "if not retained.unacknowledged:",
        "^b['\"]|no object is lost|has .* uses|lacks",
    ),
    "a cancelled task returned by its worker runs again": (
        Tasks,
        "_take_back",
        "if type(task.state) is Recalled and task.state.cancel:",
        "if False:",
        "but runs again",
    ),
    "an outcome is sent twice": (
        Tasks,
        "_end_one",
        "self._outbox.finish(task, outcome, payload if deliver",
        "self._outbox.finish(task, outcome, payload, 0, 0, 0); self._outbox.finish(task, outcome, payload if deliver",
        "ended twice",
    ),
    "a group's definitions are never released": (
        ObjectTable,
        "unuse",
        "entry.uses -= 1",
        "entry.uses -= 0",
        "the count of uses of function",
    ),
    "needs are ignored when workers are chosen": (
        WorkerPools,
        "that_fit",
        "if needs.fits(pool.offers)",
        "if pool.offers",
        "cannot run",
    ),
    "a lost worker stays in its pool": (
        Placement,
        "remove",
        "worker.join_side(None)",
        "pass",
        "a lost worker is in a pool|is on a lost worker|<Worker",
    ),
    "a silent worker is never given up": (
        SchedulerCore,
        "_expire",
        "elif silent > config.worker_timeout_seconds:",
        "elif silent < 0:",
        "tasks are still waiting",
    ),
    "a recalled task is not marked, so it is recalled repeatedly": (
        Worker,
        "count_recall",
        "self.recalled += change",
        "self.recalled += 0",
        "counts .* recalled tasks",
    ),
    "placement ignores a worker's memory and gpus": (
        Placement,
        "_room",
        "share = min(share, worker.count(queue.needs, queue))",
        "pass",
        "are taken of a stock of|^min|for more slots than",
    ),
    "a task releases its memory and gpus twice": (
        CountedClaims,
        "_give_back",
        "self.stocks[name].release(amount, devices)",
        "self.stocks[name].release(amount, devices); self.stocks[name].release(amount, devices)",
        "and its tasks take",
    ),
    "a gpu is allocated to two tasks": (
        GpuStock,
        "claim",
        "if left == UNITS_PER_ONE",
        "if True",
        "a gpu is assigned twice|are taken of a stock of",
    ),
    "a task that needs two slots occupies one": (
        Claims,
        "claim",
        "self.extra += needs.width(self.offers, self.slots) - 1",
        "pass",
        "more slots than tasks",
    ),
    "a departed client's task is not cancelled on its worker": (
        Tasks,
        "client_left",
        "self._cancel(task)",
        "pass",
        "the running tasks of a departed client are recalled",
    ),
}


@pytest.mark.parametrize("module", [test_journals, test_limits, test_persisted, test_restarts, test_whole, None])
def test_every_planted_fault_changes_existing_code(module: ModuleType | None) -> None:
    for planted in (FAULTS if module is None else module.FAULTS).values():
        with pytest.MonkeyPatch.context() as patches:
            plant(planted[1] if isinstance(planted[1], Fault) else Fault(*planted), patches)


@pytest.mark.long
def test_simulation_detects_a_planted_fault(fault_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(*FAULTS[fault_name])
    plant(fault, monkeypatch)
    with pytest.raises((AssertionError, KeyError), match=fault.words):
        _run_all()


@pytest.mark.parametrize("seeds", short_form([SEEDS[:1], SEEDS[1:]]), ids=str)
def test_simulation_without_faults_detects_nothing(seeds: range) -> None:
    _run_all(seeds)


def _run_all(seeds: range = SEEDS) -> None:
    for seed in seeds:
        for chances in (ROUGH, LOYAL):
            World(
                seed=seed,
                workers=10,
                clients=3,
                tasks=500,
                chances=chances,
                burst=10,
                check_every=5,
                limit_seconds=250.0,
                settle_seconds=0,
            ).run()
