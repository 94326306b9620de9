"""Discovery of a user's running clusters by programs and commands."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import SchedulerClusterCombo
from scaler.errors import UnreachableError, UsageError
from scaler.registry import Registration, find, find_only, page_at, running
from tests.short_forms import short_form
from tests.waiting import until

HOLDER = """
import os, signal, sys
from scaler.registry import Registration
held = Registration("held")
held.publish("tcp://h:1", "tcp://h:3")
child = os.fork() if sys.argv[1:] == ["fork"] else -1
if child <= 0:
    print(os.getpid() if child == 0 else -1, flush=True)
signal.pause()
os._exit(0)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "scaler"


@pytest.fixture
def registered(directory: Path) -> Iterator[Registration]:
    found = Registration("research")
    found.publish("tcp://h:1", "tcp://h:3", "http://h:4")
    yield found
    found.close()


def test_cluster_is_found_by_name_while_it_runs(directory: Path, registered: Registration) -> None:
    found = find("research")
    assert (found.address, found.monitor_address, found.page, found.pid) == (
        "tcp://h:1",
        "tcp://h:3",
        "http://h:4",
        os.getpid(),
    )
    assert find_only() == found
    assert page_at("tcp://h:1") == "http://h:4"
    assert directory.stat().st_mode & 0o777 == 0o700
    registered.close()
    registered.close()
    assert running() == []
    assert not list(directory.iterdir())
    assert page_at("tcp://h:1") == ""


def test_taken_name_gets_a_suffix_and_is_freed_again(registered: Registration) -> None:
    second = Registration("research")
    assert second.name == "research-2"
    registered.close()
    third = Registration("research")
    assert third.name == "research"
    for each in (second, third):
        each.close()


def test_errors_name_the_running_clusters(registered: Registration) -> None:
    with pytest.raises(UnreachableError, match=r"no cluster is named 'x'; running clusters: research \(tcp://h:1\)"):
        find("x")
    other = Registration("other")
    other.publish("tcp://h:5", "tcp://h:7")
    with pytest.raises(
        UsageError, match=r"give the name.*running clusters: other \(tcp://h:5\), research \(tcp://h:1\)"
    ):
        find_only()
    other.close()
    registered.close()
    with pytest.raises(UsageError, match="this user runs none on this host"):
        find_only()


@pytest.mark.parametrize("how", short_form(["store", "combo", "launcher", "page"], 2))
def test_running_process_republishes_its_file(directory: Path, how: str) -> None:
    suffix = {"store": ".store", "page": "web-token"}.get(how, ".cluster")

    def published() -> set[bytes]:
        return {file.read_bytes() for file in directory.glob(f"*{suffix}")} - {b""}

    with contextlib.ExitStack() as after:
        if how in ("launcher", "page"):
            command = [sys.executable, "-P", "-m", "scaler.cli", "scaler", "local", "-n", "1", "--web-port", "0"]
            launcher = after.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            after.callback(launcher.terminate)
        else:
            host = "elsewhere" if how == "store" else ""
            combo = SchedulerClusterCombo(n_workers=1, name="cleaned", host_name=host)
            after.enter_context(combo)
        before = until(published)
        shutil.rmtree(directory, ignore_errors=True)  # running processes may write while it is being emptied
        assert until(published) == before


@pytest.mark.parametrize("how", short_form(["alone", "fork"]))
def test_killed_process_leaves_no_cluster_despite_surviving_children(directory: Path, how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, how], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert find("held").pid == holder.pid
            holder.kill()
            holder.wait()
            assert running() == []
            assert not list(directory.iterdir())
            again = Registration("held")
            assert again.name == "held"
            again.close()
        finally:
            holder.kill()
            if child > 0:
                os.kill(child, signal.SIGKILL)


def check_refused(why: str) -> None:
    with pytest.raises(UsageError, match=why):
        running()
    with pytest.raises(UsageError, match=why):
        find("research")
    unregistered = Registration("research")
    assert why in unregistered.problem
    unregistered.publish("tcp://h:1", "tcp://h:3")
    unregistered.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_rejects_a_directory_of_another_user(directory: Path, registered: Registration) -> None:
    os.chown(directory, 65534, 65534)
    check_refused("is not a private directory of this user")
    os.chown(directory, 0, 0)
    assert find("research")
