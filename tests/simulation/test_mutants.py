"""Runs a few mutants of `make mutants`, to check the tool and its tests."""

from __future__ import annotations

import pytest

from tests.mutants import CORES, mutants, run, survives


@pytest.mark.parametrize("core", CORES)
def test_every_core_has_mutants(core: str) -> None:
    assert len(mutants(core)) > 20
    assert " -> " in str(mutants(core)[0])


@pytest.mark.full
@pytest.mark.timeout(300)
def test_most_of_a_few_mutants_are_killed() -> None:
    assert survives("session", None), "its tests fail without a mutant"
    killed, tried = (sum(column) for column in zip(run("session", 2, 1), run("reconcile", 2, 1), strict=True))
    assert tried == 4
    assert killed >= 2
