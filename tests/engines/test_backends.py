"""Requirements of every backend, at services. tests/contracts/test_backends.py has one check of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.testing.backends import CHECKS, BackendCase, a_unit_that_is_lost_is_listed_as_failed_with_the_reason
from tests.contracts.backend_cases import REMOTE, backend_case

OTHERS = [check for check in CHECKS if check is not a_unit_that_is_lost_is_listed_as_failed_with_the_reason]


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("check", OTHERS, ids=lambda check: check.__name__)
def test_every_backend_passes(
    check: Callable[[BackendCase], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_case(kind, tmp_path, monkeypatch) as case:
        check(case)
