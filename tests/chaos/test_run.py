"""The short form of `make chaos`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.chaos.conductor import LEFT_OUT, run, summary
from tests.chaos.faults import kinds_without

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
EVERY_SECONDS = 1.2  # the same number of faults as in 75 seconds of `make chaos`
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 300)
def test_every_future_has_one_correct_outcome_despite_failures() -> None:
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        result = run(Path(directory), SEED, SECONDS, kinds_without(LEFT_OUT), print, EVERY_SECONDS)
    assert summary(result.problems) == []
    assert result.verdict.right > 10 * SECONDS
    assert sum(result.verdict.strikes.values()) > SECONDS / 10
