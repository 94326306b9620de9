"""Policies that cannot be loaded or are invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.policy.load import check_managers, load_policy

MODULE = """
from scaler.errors import UsageError
from scaler.policy.view import Allocation

class Picky:
    def __init__(self, content):
        if content != "easy":
            raise UsageError(f"policy_content {content!r}: write easy")

class Broken:
    def __init__(self, content):
        self.number = int(content)

class Planless:
    allocation = Allocation()
    def __init__(self, content): pass
"""
POINTS = """[scaler.scaling_policies]
picky = own_policies:Picky
broken = own_policies:Broken
planless = own_policies:Planless
missing = own_policies:Missing
absent = no_such_module_at_all:Policy
"""


@pytest.fixture(autouse=True)
def _own_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(MODULE)
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("picky", r"^policy_content 'hard': write easy$"),
        (
            "broken",
            r"'broken': own_policies:Broken cannot be created with policy_content 'hard': ValueError: .*own_pol.*:\d",
        ),
        ("missing", r"own_policies:Missing cannot be created .*AttributeError: .*Missing"),
        ("absent", r"no_such_module_at_all:Policy cannot be created .*ModuleNotFoundError: No module named"),
        (
            "nobody",
            r"'nobody' is unknown; known: absent, broken, missing, picky, planless, simple, target_v1, waterfall_v1",
        ),
    ],
)
def test_policy_construction_error_names_cause_and_location(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        load_policy(name, "hard")


@pytest.mark.parametrize(("name", "kind"), [("picky", "Picky"), ("planless", "Planless")])
def test_created_object_must_be_a_policy(name: str, kind: str) -> None:
    with pytest.raises(
        UsageError, match=f"returned {kind}, which is not a policy: a policy has an attribute allocation"
    ):
        load_policy(name, "easy")


@pytest.mark.parametrize(
    ("engine", "content", "known", "scaled"),
    [
        ("waterfall_v1", "1,local,4; 2,clod,-1", ["local", "cloud"], ["local", "cloud"]),
        ("waterfall_v1", "1,nosuch,4", ["local", "cloud"], ["local", "cloud"]),
        ("target_v1", "clod.idle_seconds=1", ["local", "cloud"], ["local", "cloud"]),
    ],
)
def test_rejects_a_policy_that_misspells_a_worker_manager(
    engine: str, content: str, known: list[str], scaled: list[str]
) -> None:
    with pytest.raises(UsageError, match=r"manager '(clod|nosuch)' is unknown; (did you mean 'c|known: c)loud"):
        check_managers(load_policy(engine, content), known, scaled)


@pytest.mark.parametrize(
    ("content", "known", "scaled"),
    [
        ("1,local,4; 2,cloud,-1", ["local"], ["local"]),  # cloud joins from elsewhere
        ("1,cloud,-1", ["local"], []),  # the connected one is fixed
        ("1,cloud,-1", [], []),
    ],
)
def test_accepts_worker_managers_that_may_join_later(content: str, known: list[str], scaled: list[str]) -> None:
    check_managers(load_policy("waterfall_v1", content), known, scaled)
