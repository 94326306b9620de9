"""The ratchet checker detects values that got worse, and lowers limits."""

from __future__ import annotations

from pathlib import Path

from tests.lint.ratchets import Project, lowered, worse

LIMITS = '[limits]\nproduct_lines = 20\n"closure.scaler.a" = 7\nprose = 1.5\n'


def project(root: Path, **sources: str) -> Project:
    (root / "scaler" / "testing").mkdir(parents=True)
    (root / "scaler" / "testing" / "fake.py").write_text("import scaler.a\n")
    for name, source in sources.items():
        (root / "scaler" / f"{name}.py").write_text(source)
    return Project(root)


def test_prints_values_above_their_limits_and_unpaired_names() -> None:
    lines = worse({"better": 1, "equal": 2, "worse": 3.5, "new": 0}, {"better": 2, "equal": 2, "worse": 3, "gone": 1})
    assert lines == ["worse: 3.5 > 3", "new: no limit in .ci/ratchets.toml", "gone: nothing has this name"]


def test_lowers_limits_and_raises_none() -> None:
    values = {"product_lines": 19, "closure.scaler.a": 8, "prose": 1.4}
    assert lowered(LIMITS, values) == LIMITS.replace("20", "19").replace("1.5", "1.4")


def test_closure_includes_imports_in_functions_and_packages(tmp_path: Path) -> None:
    found = project(
        tmp_path,
        a="from scaler import b\n",
        b="def late() -> None:\n    from scaler.c import name\n",
        c="import os\nname = 1\n",
        d="from scaler.a import b\n",
    )
    assert found.closure("scaler.a") == {"scaler.a", "scaler.b", "scaler.c"}
    assert found.lines(found.modules) == 1 + 2 + 2 + 1
