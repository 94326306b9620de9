"""Requirements pinned with all their dependencies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scaler.pins import locked


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an application, a server with an extra, and their dependencies."""
    for name, version, needs in (
        ("app", "1.0", ("server[fast,Slow]>=2; python_version >= '3'", "windows-only; sys_platform == 'win32'")),
        ("server", "2.1", ("loop>=1; extra == 'fast' and sys_platform != 'win32'", "base", "tools; extra == 'dev'")),
        ("loop", "1.5", ()),
        ("base", "0.3", ("app",)),
        ("tools", "9", ()),
        ("windows-only", "9", ()),
    ):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {each}" for each in needs),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])


def test_requirements_of_a_dependencys_extras_are_pinned_too() -> None:
    assert locked(["app"]) == ["app==1.0", "base==0.3", "loop==1.5", "server==2.1"]


def test_user_requirements_are_kept_and_bare_names_pinned() -> None:
    own = ["server==2.0", "Base", "./wheels/mine.whl", "elsewhere", "tools @ https://example.org/tools.whl"]
    assert set(locked(["app"], own)) == {
        "app==1.0", "base==0.3", "server==2.0", "./wheels/mine.whl", "elsewhere", own[-1]
    }  # fmt: skip
    assert locked([], ["server[fast]"]) == ["app==1.0", "base==0.3", "loop==1.5", "server==2.1"]
