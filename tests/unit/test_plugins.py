"""Plug-ins are found by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scaler.plugins import POLICIES, WORKER_MANAGERS, Plugins, WorkerManagerType, load


@pytest.mark.parametrize("plugins", [POLICIES, WORKER_MANAGERS])
def test_every_built_in_name_can_be_loaded(plugins: Plugins) -> None:
    assert all(
        callable(found) or isinstance(found, WorkerManagerType) for found in map(load, plugins.built_in.values())
    )


def test_finds_built_in_names_without_scanning_installed_packages() -> None:
    code = (
        "import sys; from scaler.policy.load import load_policy; load_policy('simple', ''); "
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_are_not_built_in_are_found_among_installed_extensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[scaler.scaling_policies]\nother = collections:OrderedDict.fromkeys\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "other" in POLICIES.names()
    assert POLICIES.reference("other") == "collections:OrderedDict.fromkeys"
    assert POLICIES.reference("nobody") is None


def test_reference_may_point_into_a_class() -> None:
    assert load("collections:OrderedDict.fromkeys") == __import__("collections").OrderedDict.fromkeys
