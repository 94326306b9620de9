"""Requirements that clients send."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.extensions.environment import listed
from scaler.extensions.environment.listed import requirements_of, unpacked


def lines(environment: object) -> tuple[str, ...]:
    return unpacked(requirements_of(environment)).requirements


def test_equal_lists_are_one_environment() -> None:
    assert requirements_of(["b", "a>=1 "]) == requirements_of(("a>=1", "b", "b"))
    assert lines(["b", "a>=1"]) == ("a>=1", "b")
    assert requirements_of([]) == b""


def test_file_includes_other_files_and_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("b \\\n  >=2  # at least\n./b.whl\n")
    (tmp_path / "limits.txt").write_text("c<3\n")
    path = tmp_path / "requirements.txt"
    path.write_text("# ours\n--no-index\na==1\n-r more/base.txt\n--constraint=limits.txt\n")
    found = unpacked(requirements_of(path))
    assert found.requirements == ("--no-index", "a==1", "b    >=2", str(tmp_path / "more" / "b.whl"))
    assert found.constraints == ("c<3",)
    before = requirements_of(str(path))
    path.write_text("a==2")
    assert requirements_of(str(path)) != before


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ("numpy==1.26.4", r"cannot read 'numpy==1.26.4': .*; give a list: \['numpy==1.26.4'\]"),
        ("missing.txt", "cannot read 'missing.txt'"),
        (5, "must be a list of requirements, a path, or"),
        ([5], "must be a list of requirements, a path, or"),
        (["-e ."], "workers cannot install '-e .'.* client.upload"),
        (["."], "workers cannot install '.', which only this machine has"),
        ([f"package-{number:x}=={number**5}" for number in range(99_999, 109_999)], "compressed bytes, at most"),
    ],
)
def test_unusable_environment_is_an_error(environment: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        requirements_of(environment)


def test_file_that_includes_itself_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("-r requirements.txt")
    with pytest.raises(UsageError, match="includes itself"):
        requirements_of(path)


def distribution(folder: Path, name: str, version: str, **origin: object) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))


def test_auto_sends_installed_versions_and_names_local_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "From_Index", "1.0")
    distribution(tmp_path, "cloudpickle", "1.0")
    distribution(tmp_path, "fromgit", "2.0", url="https://g/r", vcs_info={"vcs": "git", "commit_id": "abc"})
    distribution(tmp_path, "fromurl", "2.0", url="https://g/r.whl", archive_info={})
    distribution(tmp_path, "edited", "1", url="file:///home/me", dir_info={"editable": True})
    distribution(tmp_path, "onlyhere", "1", url="file:///home/me.whl", archive_info={})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(listed, "own_versions", lambda: ["cloudpickle==3"])
    with pytest.warns(UserWarning, match="only this machine has: edited, onlyhere; send its code with client.upload"):
        assert lines("auto") == ("from-index==1.0", "fromgit @ git+https://g/r@abc", "fromurl @ https://g/r.whl")


def test_lock_file_is_exported_without_scaler_and_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    text = "# by uv\nscaler-compute==1\\n    # via x\ncloudpickle==3.0.0\nnumpy==1.26.4 ; python_version < '4'"
    uv.write_text(f'#!/bin/sh\ntest -e "$8/uv.lock" || exit 1\nprintf "{text}\\n"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "uv.lock").write_text("version = 1\n")
    assert lines(tmp_path / "uv.lock") == ("numpy==1.26.4 ; python_version < '4'",)
    uv.write_text("#!/bin/sh\necho no pyproject.toml >&2\nexit 2\n")
    (tmp_path / "uv.lock").rename(tmp_path / "other")
    (tmp_path / "more").mkdir()
    (tmp_path / "other").rename(tmp_path / "more" / "uv.lock")
    with pytest.raises(UsageError, match=r"uv cannot read .*uv.lock: no pyproject.toml"):
        lines(tmp_path / "more" / "uv.lock")
