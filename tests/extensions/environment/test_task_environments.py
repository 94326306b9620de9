"""Environments of tasks on a cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ConfigError, TaskRejectedError
from scaler.extensions.environment import installer
from scaler.extensions.environment.installer import PACKED
from scaler.extensions.environment.listed import requirements_of
from scaler.worker.agent.events import ActOnProcessor, ProcessorVerb, UseEnvironment
from tests.extensions.environment.test_requirements import imported, uv, version_of_a_child, wheel
from tests.integration.worker_rig import Rig, played
from tests.waiting import until

WAIT_SECONDS = 120.0
INSTALL = """
case $1 in pip) ;; *) exit 2 ;; esac
while test "$1" != --target; do shift; done
folder=$2
while test "$1" != -r; do shift; done
version=$(sed -n 's/^tabulator==//p' "$2")
if test "$version" = 9; then printf 'lots of text\\n\\nno tabulator 9\\n' >&2; exit 1; fi
mkdir {tests}/busy || echo overlap >> {tests}/overlaps
mkdir -p "$folder/scaler"
echo 'raise ImportError("wrong module")' | tee "$folder/typing.py" > "$folder/scaler/__init__.py"
while test "$version" = waits -a ! -e {tests}/flag; do sleep 0.05; done
echo "VERSION = '$version'" > "$folder/tabulator.py"
rmdir {tests}/busy || true
"""


def version(_: object = None) -> str:
    return imported()[0]


def is_missing() -> bool:
    try:
        imported()
    except ImportError:
        return True
    return False


def nested() -> tuple[str, str, bool]:
    with Client() as client:
        usual = client.submit_verbose(is_missing, environment=[]).result(WAIT_SECONDS)
        return version(), client.submit(version).result(WAIT_SECONDS), usual


def opened(path: Path) -> bool:
    return bool(until(path.exists, WAIT_SECONDS))


def with_parent() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def provided(*requirements: str, say: Callable[[str], object] = bool) -> tuple[Path, int]:
    return installer.provide(requirements_of([*requirements]), "the packages of its environment", say)


def kept(*requirements: str) -> Path:
    folder, lock = provided(*requirements)
    os.close(lock)
    return folder


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the record of an installer's calls. It installs tabulator in any version but 9, and modules that would
    break Python and Scaler."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    uv(tmp_path, INSTALL.format(tests=tmp_path))
    return tmp_path / "calls"


@pytest.fixture
def address() -> Iterator[str]:
    with SchedulerClusterCombo(n_workers=2) as combo:
        yield combo.get_address()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def test_versions_of_a_package_run_at_the_same_time_on_one_worker(client: Client, address: str, calls: Path) -> None:
    one, two = client.options(environment=["tabulator==1"]), client.options(environment=["tabulator==2"])
    with Client(address, environment=["tabulator==2"]) as other:
        futures = [each.submit(version) for _ in range(20) for each in (one, two, other)]
        assert [future.result(WAIT_SECONDS) for future in futures] == ["1", "2", "2"] * 20
    assert one.map(version, range(50)) == ["1"] * 50
    assert client.map(version, range(50), environment=["tabulator==2"]) == ["2"] * 50
    graph = {"a": 0, "b": (version, "a"), "c": (version, "b"), "d": (lambda *each: each, "b", "c")}
    assert one.get(graph, ["d"], node_options={"c": {"environment": ["tabulator==2"]}}) == {"d": ("1", "2")}
    assert one.submit(nested).result(WAIT_SECONDS) == ("1", "1", True)
    assert one.submit(version_of_a_child).result(WAIT_SECONDS) == "1"
    assert client.submit(is_missing).result(WAIT_SECONDS)
    assert len(calls.read_text().splitlines()) == 2


def test_failed_installation_is_the_reason_of_tasks_and_the_worker_lives(client: Client, calls: Path) -> None:
    before = client.submit(with_parent).result(WAIT_SECONDS)[1]
    futures = [client.submit_verbose(version, environment=["tabulator==9", "b"]) for _ in range(200)]
    for future in futures:
        with pytest.raises(
            TaskRejectedError, match=r"its environment \(b, tabulator==9\).*: lots of text; no tabulator 9"
        ):
            future.result(WAIT_SECONDS)
    assert client.submit(with_parent).result(WAIT_SECONDS)[1] == before
    assert len(calls.read_text().splitlines()) == 1


def test_other_tasks_run_during_an_installation_and_waiting_ones_can_be_cancelled(
    client: Client, tmp_path: Path
) -> None:
    waiting = client.options(environment=["tabulator==waits"])
    first, second = waiting.submit(version), waiting.submit(version)
    assert until(lambda: "its environment is being installed on 1 worker" in client.explain(first), WAIT_SECONDS)
    assert client.map(abs, range(-20, 0)) == [*range(20, 0, -1)]
    assert second.cancel()
    (tmp_path / "flag").touch()
    assert first.result(WAIT_SECONDS) == "waits"
    assert second.cancelled()


def test_killed_fork_server_is_replaced_and_its_tasks_run_again(client: Client, tmp_path: Path) -> None:
    one = client.options(environment=["tabulator==1"])
    server = one.submit(with_parent).result(WAIT_SECONDS)[1]
    running = one.submit(opened, tmp_path / "flag")
    os.kill(server, signal.SIGKILL)
    assert one.submit(version).result(WAIT_SECONDS) == "1"
    (tmp_path / "flag").touch()
    assert running.result(WAIT_SECONDS)
    assert one.submit(with_parent).result(WAIT_SECONDS)[1] != server


def test_unused_environments_are_removed_after_the_most_recent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "KEPT", 2)
    other = tmp_path / "cache" / "scaler" / "environments" / "of_an_ssh_host"
    other.mkdir(parents=True)
    folders = []
    locks = []
    for number in range(4):
        folder, lock = provided(f"tabulator=={number}")
        os.utime(folder, (number, number))
        folders.append(folder)
        locks.append(lock)
        if number == 1:
            os.close(lock)
    assert [folder.exists() for folder in folders] == [True, False, True, True]
    for lock in (locks[0], *locks[2:]):
        os.close(lock)
    assert other.exists()
    kept("tabulator==5")
    found = {each.name for each in folders[0].parent.iterdir() if each.suffix != installer.STATE}
    assert found == {"lock", folders[3].name, kept("tabulator==5").name}


def test_environments_are_installed_one_after_the_other_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, waited = fcntl.flock, []

    def lock_and_record(descriptor: int, kind: int) -> None:
        try:
            lock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if kind & fcntl.LOCK_NB:
                raise
            waited.append(kind)
            (tmp_path / "flag").touch()
            lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", lock_and_record)
    first, second = (threading.Thread(target=kept, args=(f"tabulator=={each}",)) for each in ("waits", "1"))
    first.start()
    assert until((tmp_path / "busy").exists, WAIT_SECONDS)
    second.start()
    second.join()
    (tmp_path / "flag").touch()
    first.join()
    assert waited == [fcntl.LOCK_EX]
    assert not (tmp_path / "overlaps").exists()


def test_installation_that_hangs_delays_no_other_environment(
    client: Client, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a package index that accepts connections and never answers."""
    monkeypatch.setattr(installer, "SLOW_SECONDS", 0.1)
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: os.close(provided("tabulator==waits", say=said.append)[1])) for _ in range(2)
    ]
    threads[0].start()
    assert until((tmp_path / "busy").exists, WAIT_SECONDS)
    threads[1].start()
    assert until(lambda: "waits for another process" in said[-1], WAIT_SECONDS)
    assert (kept("tabulator==1") / "tabulator.py").exists()
    waiting = client.submit_verbose(version, environment=["tabulator==waits"])
    text = "waits for another process on its host to install the packages of its environment (tabulator==waits)"
    assert until(lambda: text in client.explain(waiting), WAIT_SECONDS, pause_seconds=0.1)
    assert client.submit_verbose(version, environment=["tabulator==2"]).result(WAIT_SECONDS) == "2"
    (tmp_path / "flag").touch()
    assert waiting.result(WAIT_SECONDS) == "waits"
    for thread in threads:
        thread.join()
    assert len(calls.read_text().splitlines()) == 3


def test_waiting_process_installs_if_the_installing_one_is_killed(calls: Path, tmp_path: Path) -> None:
    given, said = requirements_of(["tabulator==waits"]), [""]
    code = "from scaler.extensions.environment import installer; installer.SLOW_SECONDS = 0"
    code += f"; installer.provide({given!r}, '')"
    thread = threading.Thread(target=lambda: os.close(provided("tabulator==waits", say=said.append)[1]))
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert until((tmp_path / "busy").exists, WAIT_SECONDS)
        thread.start()
        assert until(lambda: "waits for another process" in said[-1], WAIT_SECONDS)
        process.kill()
    assert until(lambda: said[-1].startswith("installs"), WAIT_SECONDS)
    (tmp_path / "flag").touch()
    thread.join()
    assert (kept("tabulator==waits") / "tabulator.py").exists()
    assert len(calls.read_text().splitlines()) == 2


def test_installer_that_exceeds_its_time_is_killed(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(installer, "INSTALL_SECONDS", 0.1)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"tabulator==waits\) were not installed within 0.1 s"):
            kept("tabulator==waits")
    assert len(calls.read_text().splitlines()) == 1


def test_environment_that_is_replaced_before_its_use_is_kept(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept("tabulator==1")
    flock = fcntl.flock

    def replace_before(descriptor: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        kept("tabulator==1")
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", replace_before)
    _, lock = provided("tabulator==1")
    assert len(calls.read_text().splitlines()) == 2
    with (folder / PACKED).open() as other, pytest.raises(BlockingIOError):
        flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


@pytest.mark.full
def test_pip_installs_wheels_for_workers_of_one_host_once(tmp_path: Path) -> None:
    (tmp_path / "home" / ".local" / "bin" / "uv").unlink()
    path = tmp_path / "requirements.txt"
    path.write_text(f"tabulator @ file://{wheel(tmp_path, '1.0')}\n")
    with SchedulerClusterCombo(n_workers=2) as combo, Client(combo.get_address(), environment=path) as client:
        found = {client.submit(imported, number).result(WAIT_SECONDS) for number in range(10)}
    [folder] = [each for each in (tmp_path / "cache" / "scaler" / "packages").iterdir() if each.is_dir()]
    assert found == {("1.0", str(folder / "tabulator.py"))}


def test_credentials_of_an_index_are_in_no_error() -> None:
    with pytest.raises(ConfigError, match=r"environment \(tabulator==9\)") as error:
        provided("--index-url=https://ann:secret@host/simple", "tabulator==9")
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match=r"https://host/tabulator\.whl") as error:
        provided("--no-index", "tabulator @ https://ann:secret@host/tabulator.whl", "tabulator==9")
    assert "secret" not in str(error.value)


def test_other_users_cannot_read_the_requirements_of_an_environment() -> None:
    assert kept("tabulator==1").parent.stat().st_mode & 0o077 == 0


def test_requirement_with_many_hashes_is_installed() -> None:
    hashes = [f"--hash=sha256:{number:064x}" for number in range(5)]
    assert (kept(f"tabulator==1 {' '.join(hashes)}") / "tabulator.py").exists()


def test_leftovers_of_killed_processes_and_failures_are_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "scaler" / "packages"
    for name in ("a", "a.new"):
        (cache / name / "package").mkdir(parents=True)
    for name, age in (("c.state", installer.FAILED_SECONDS + 1), ("b.state", 0)):
        (cache / name).touch()
        os.utime(cache / name, (time.time() - age,) * 2)
    folder = kept("tabulator==1")
    assert {each.name for each in cache.iterdir()} == {
        "a.state",
        "b.state",
        "lock",
        folder.name,
        f"{folder.name}.state",
    }


def test_killed_process_leaves_no_installer_and_no_lock(tmp_path: Path) -> None:
    given = requirements_of(["tabulator==waits"])
    code = f"from scaler.extensions.environment.installer import provide; provide({given!r}, '')"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert until((tmp_path / "busy").exists, WAIT_SECONDS)
        process.kill()
    path = tmp_path / "cache" / "scaler" / "packages" / "lock"

    def is_free() -> bool:
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    assert until(is_free, 10.0)


@played()
async def test_commands_for_a_fork_server_that_has_just_exited_do_not_end_the_worker(rig: Rig) -> None:
    rig.agent._perform(UseEnvironment(b"gone", None))  # noqa: SLF001
    rig.agent._perform(ActOnProcessor(99, ProcessorVerb.SPAWN, b"gone"))  # noqa: SLF001
    [task] = rig.submit(abs, (-1,))
    assert await rig.value(task) == 1
