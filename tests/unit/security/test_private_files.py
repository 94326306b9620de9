"""Who may read a secret: this user, or root and a group of this process, as with a mounted Secret of Kubernetes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.security.credential import Credential
from scaler.security.directory import KeysDirectory
from scaler.security.private_files import read_private, write_private

USER, GROUP, OTHER = 54321, 54322, 54323
READ = """
import os, sys
from scaler.errors import ConfigError
from scaler.security.private_files import read_private
from scaler.security.directory import KeysDirectory
from pathlib import Path
uid, gid, groups, path = int(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3]), Path(sys.argv[4])
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
try:
    KeysDirectory.open(path) if path.is_dir() else read_private(path)
    print("accepted")
except ConfigError as error:
    print(error)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@pytest.fixture
def mounted() -> Iterator[Path]:
    """Return a directory that every user can reach: `tmp_path` is private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def read(path: Path, uid: int, gid: int, *groups: int) -> str:
    command = [sys.executable, "-c", READ, str(uid), str(gid), repr(groups), str(path)]
    return subprocess.check_output(command, text=True).strip()


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "process", "answer"),
    [
        (0, GROUP, 0o440, (USER, USER, GROUP), "accepted"),  # fsGroup of the pod, runAsUser of the container
        (0, GROUP, 0o440, (0, 0, 0, GROUP), "accepted"),  # a container that runs as root
        (0, GROUP, 0o444, (USER, USER, GROUP), "other users can open"),
        (0, GROUP, 0o660, (USER, USER, GROUP), "other users can open"),  # members could replace the key
        (USER, GROUP, 0o440, (USER, USER, GROUP), "other users can open"),
        (OTHER, GROUP, 0o440, (USER, USER, GROUP), "belongs to another user (uid 54323)"),
    ],
)
def test_secret_may_be_readable_by_root_and_groups_of_this_process(
    mounted: Path, owner: int, group: int, mode: int, process: tuple[int, ...], answer: str
) -> None:
    version = mounted / "..2026_11_28"
    version.mkdir(0o755)
    file = version / "alice.credentials"
    file.write_text("secret")
    file.chmod(mode)
    os.chown(file, owner, group)
    (mounted / "..data").symlink_to(version.name)
    (mounted / file.name).symlink_to(f"..data/{file.name}")
    assert answer in read(mounted / file.name, *process)


@needs_root
def test_cluster_keys_may_be_a_mounted_secret(mounted: Path) -> None:
    keys = KeysDirectory.create(mounted / "keys", "c")
    credential = keys.add("alice", "client")
    assert isinstance(credential, Credential)
    for file in keys.path.iterdir():
        if file.is_file():
            os.chown(file, 0, GROUP)
            file.chmod(0o440)
    os.chown(keys.path, 0, GROUP)
    keys.path.chmod(0o3777)  # as created by the kubelet, on a read-only mount
    assert read(keys.path, USER, USER, GROUP) == "accepted"
    assert read(keys.path, 0, 0, GROUP) == "accepted"
    keys.path.chmod(0o777)
    assert "other users can open" in read(keys.path, USER, USER, GROUP)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_keys_work_on_a_file_system_without_links_locks_and_dir_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def sync_files_only(descriptor: int) -> None:
        refuse() if stat.S_ISDIR(os.fstat(descriptor).st_mode) else fsync(descriptor)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", sync_files_only)
    monkeypatch.setattr(fcntl, "flock", refuse)
    keys = KeysDirectory.create(tmp_path / "keys", "c")
    made = keys.credential("m", "manager")
    assert KeysDirectory.open(keys.path).credential("m", "manager") == made
    write_private(tmp_path / "once", "first")
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "once", "second")
    assert read_private(tmp_path / "once") == "first"
