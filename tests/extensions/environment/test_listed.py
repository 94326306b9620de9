"""Requirements that clients send."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from scaler.errors import UsageError
from scaler.extensions.environment import listed
from scaler.extensions.environment.installer import digest_of, unpacked
from scaler.extensions.environment.listed import requirements_of


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
    path.write_text("\ufeff# ours\n--no-index\na==1\n-r more/base.txt\n--constraint=limits.txt\n")
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
        (["-e."], "workers cannot install '-e.'"),
        (["-r missing.txt"], r"cannot read '.*/missing\.txt'"),
        (["."], "workers cannot install '.', which only this machine has"),
        ([f"package-{number:x}=={number**5}" for number in range(99_999, 109_999)], "the compressed requirements have"),
    ],
)
def test_unusable_environment_is_an_error(environment: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        requirements_of(environment)


def test_binary_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "b.whl"
    path.write_bytes(b"PK\xff")
    with pytest.raises(UsageError, match=r"b\.whl' is not text; give a list"):
        requirements_of(path)


def test_relative_folders_of_wheels_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    path = tmp_path / "requirements.txt"
    path.write_text("--find-links=wheels\n-f https://host/wheels\n")
    assert lines(path) == (f"--find-links {tmp_path / 'wheels'}", "--find-links https://host/wheels")


def test_file_with_the_name_of_a_package_does_not_change_its_requirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").touch()
    assert lines(["b"]) == ("b",)


def test_list_includes_files(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("b==1\n-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("c<3\n")
    found = unpacked(requirements_of(["a==1", f"-r{tmp_path / 'base.txt'}"]))
    assert found.requirements == ("a==1", "b==1")
    assert found.constraints == ("c<3",)


def test_changes_of_included_files_and_local_wheels_are_other_environments(tmp_path: Path) -> None:
    path, base, wheel = (tmp_path / name for name in ("requirements.txt", "base.txt", "b.whl"))
    path.write_text("-r base.txt\n")
    base.write_text("a==1\n")
    first = requirements_of(path)
    base.write_text(f"a==1\nb @ file://{wheel}")
    wheel.write_bytes(b"one")
    second = requirements_of(path)
    os.utime(wheel, (5, 5))
    assert requirements_of(path) == requirements_of(path)
    assert len({first, second, requirements_of(path)}) == 3


def test_wheels_with_other_content_are_in_other_folders(tmp_path: Path) -> None:
    wheel = tmp_path / "b.whl"
    digests = set()
    for line in (f"b @ file://{wheel}", f"{wheel}  # changed 5"):
        for data in (b"one", b"two"):
            wheel.write_bytes(data)
            digests.add(digest_of([line], []))
    assert len(digests) == 4


def test_hosts_with_another_c_library_use_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for version in ("2.17", "2.39"):
        monkeypatch.setattr("platform.libc_ver", lambda version=version: ("glibc", version))
        digests.add(digest_of(["b"], []))
    assert len(digests) == 2


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
    (tmp_path / "pyproject.toml").touch()
    assert lines(tmp_path / "uv.lock") == ("numpy==1.26.4 ; python_version < '4'",)
    (tmp_path / "more").mkdir()
    path = (tmp_path / "uv.lock").rename(tmp_path / "more" / "uv.lock")
    with pytest.raises(UsageError, match=r"cannot read '.*/pyproject.toml'"):
        lines(path)
    (tmp_path / "more" / "pyproject.toml").touch()
    uv.write_text("#!/bin/sh\necho lots of text >&2\nexit 2\n")
    with pytest.raises(UsageError, match=r"uv cannot read .*uv.lock: lots of text"):
        lines(path)
    uv.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(listed, "EXPORT_SECONDS", 0.1)
    with pytest.raises(UsageError, match=r"uv has not read .*uv.lock within 0.1 s"):
        lines(path)
