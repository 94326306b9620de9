"""Requirements for every worker manager backend: all checks for local backends, and one check per service.

tests/engines/test_backends.py runs the services' other checks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scaler.testing.backends import CHECKS, BackendCase, a_unit_that_is_lost_is_listed_as_failed_with_the_reason
from tests.contracts.backend_cases import LOCAL, REMOTE, backend_case
from tests.short_forms import short_form


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_backend_passes(
    check: Callable[[BackendCase], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_case(kind, tmp_path, monkeypatch) as case:
        check(case)


@pytest.mark.parametrize("kind", short_form(REMOTE, 2))
def test_units_at_a_service_start_and_show_how_they_ended(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_case(kind, tmp_path, monkeypatch) as case:
        a_unit_that_is_lost_is_listed_as_failed_with_the_reason(case)
