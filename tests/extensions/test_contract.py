"""Every extension follows the contract, built-in or not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from scaler.plugins import Extension, extensions
from scaler.scheduler.core.commands import HoldObjects, Perform
from scaler.testing.extensions import CHECKS, Contract, commands_are_own, same_input_same_output
from tests.extensions.installed import EXAMPLE

NUMBERS = count()
Check = Callable[[Contract], None]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Extension]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("scaler_slow_tasks").EXTENSION
    for name in [name for name in sys.modules if name.startswith("scaler_slow_tasks")]:
        del sys.modules[name]


@pytest.mark.parametrize("extension", extensions(), ids=lambda extension: extension.name)
def test_built_in_extension_follows_the_contract(extension: Extension) -> None:
    contract = Contract(extension)
    for check in CHECKS:
        check(contract)


def test_example_follows_the_contract(example: Extension) -> None:
    contract = Contract(example, settings={"slow_seconds": 0.001})
    for check in CHECKS:
        check(contract)
    assert contract.first[1]["slow_tasks"]


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        (lambda _part, _changes: [Perform("workers", [])], commands_are_own, "no Perform of its own"),
        (
            lambda _part, _changes: [HoldObjects([b"%d" % next(NUMBERS)], [])],
            same_input_same_output,
            "on_changes returned",
        ),
        (lambda _part, changes: changes[0].cpu_us.append(0) or [], same_input_same_output, "has modified"),
    ],
    ids=["another extension", "no pure function", "changed changes"],
)
def test_contract_check_finds_a_fault(
    example: Extension, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., list[object]], check: Check, said: str
) -> None:
    core = importlib.import_module("scaler_slow_tasks.core")
    monkeypatch.setattr(core.SlowTasks, "on_changes", lambda part, changes, _now: fault(part, changes))
    with pytest.raises(AssertionError, match=said):
        check(Contract(example))
