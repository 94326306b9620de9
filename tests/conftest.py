"""Fixtures for all tests: a shared cluster, and guards against leftovers."""

from __future__ import annotations

import functools
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.run import NOTES
from tests.waiting import within

if TYPE_CHECKING:
    from scaler.cluster.combo import SchedulerClusterCombo
    from scaler.cluster.supervisor import ReservedPorts

# A fixed set of examples, so a passing check never fails by chance. `make soak` draws many new ones.
# On a busy machine, drawing an example can take long without any fault of the test.
SLOW = (HealthCheck.too_slow,)
# Shrinking a failure can take minutes, too long for a run of all tests: `pytest FILE` shrinks it.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate) if NOTES in os.environ else tuple(Phase)
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=25, suppress_health_check=SLOW, phases=PHASES
)
settings.register_profile("short", settings.get_profile("repeatable"), max_examples=10)
settings.register_profile("soak", deadline=None, max_examples=300, suppress_health_check=SLOW)

MARK = "TEST_RUN_OF_SCALER"
END_SECONDS = 10.0
"""Time limit for the exit of a test module's processes after its last test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the tests marked long in full length")
    parser.addoption(
        "--rewrite", action="store_true", help="write the expected texts that tests compare: read the diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_short = "not full" in config.getoption("markexpr")
    settings.load_profile("soak" if config.getoption("--soak") else "short" if is_short else "repeatable")
    # An environment as AWS users have it, without queries to an instance's metadata service.
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """True if long tests run in full, False for their short form."""
    return bool(request.config.getoption("--soak"))


@dataclass(frozen=True)
class Run:
    """Identifies this test run among all processes and files on the machine."""

    mark: str
    """Value of MARK in the environment of every process that the tests start."""
    temporary: Path
    """Directory for temporary files of this process and its children."""


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    tmp_path_factory.getbasetemp()  # creates pytest's own directory before TMPDIR changes
    with tempfile.TemporaryDirectory(prefix="st-") as directory, pytest.MonkeyPatch.context() as patch:
        found = Run(uuid.uuid4().hex, Path(directory))
        patch.setenv(MARK, found.mark)
        patch.setenv("TMPDIR", directory)
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # running clusters of other users
        patch.delenv("SCALER_ADDRESS", raising=False)
        patch.setattr(tempfile, "tempdir", directory)
        yield found


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the living processes of this run, except the test process and the multiprocessing helper.

    The helper exits together with the test process.
    """
    own = os.getpid(), getattr(resource_tracker._resource_tracker, "_pid", None)  # noqa: SLF001
    entry, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError, psutil.NoSuchProcess):
            if entry in path.read_bytes().split(b"\0") and int(path.parent.name) not in own:
                found.append(psutil.Process(int(path.parent.name)))
    return found


def wait_for_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for the processes to exit; return those still running after the time limit."""
    deadline = time.monotonic() + seconds
    left = []
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        os.close(descriptor)
        if not ended:
            left.append(process)
    return left


@pytest.fixture(scope="session", autouse=True)
def aws_models() -> Iterator[None]:
    """Let all boto3 clients share service descriptions, because reading them takes longer than most tests."""
    session = sys.modules.get("botocore.session")  # imported if a collected test needs it
    with pytest.MonkeyPatch.context() as patch:
        if session is not None:
            patch.setattr(session, "create_loader", functools.cache(session.create_loader))
        yield


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restore the root logger, which commands and components configure in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if root.handlers != handlers:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:] = handlers
    if root.level != level:
        root.setLevel(level)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(run: Run) -> Iterator[None]:
    """Fail a module whose tests leave a process or a temporary file, or disable clients, and clean up."""
    yield
    left = wait_for_end(marked_processes(run.mark), END_SECONDS)
    stories = [f"{process.pid}: {process.cmdline()}" for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not stories, f"processes are left behind: {stories}"
    assert not list(run.temporary.iterdir()), "temporary files are left behind"
    context = sys.modules.get("scaler.worker.processor.context")
    refusal, left_by = (context.refusal, context) if context else ("", None)
    if left_by is not None:
        left_by.refusal = ""  # type: ignore[attr-defined]
    assert not refusal, "this process continues as a job, in which clients are disabled"


@pytest.fixture
def ports() -> Iterator[ReservedPorts]:
    """Four consecutive ports that no other program gets during the test."""
    from scaler.cluster.supervisor import ReservedPorts  # noqa: PLC0415 (unit tests do not need this import)

    reserved = ReservedPorts(4)
    yield reserved
    reserved.release()


@dataclass(frozen=True)
class SharedCluster:
    """A scheduler and two workers. Replaces the `SchedulerClusterCombo` that runs in another process."""

    address: str
    monitor_address: str = ""
    object_storage_address: str = ""

    def get_address(self) -> str:
        return self.address

    def get_monitor_address(self) -> str:
        return self.monitor_address

    def get_object_storage_address(self) -> str:
        return self.object_storage_address


@pytest.fixture(scope="session")
def shared_cluster(run: Run) -> Iterator[SharedCluster]:
    """The cluster of all modules; `tests/environments` names another one."""
    if address := os.environ.get("CLUSTER_OF_TESTS"):
        yield SharedCluster(address)
        return
    mark = f"{run.mark}-shared"
    with tempfile.TemporaryDirectory(prefix="sc-", dir=run.temporary.parent) as directory:
        environment = {**os.environ, MARK: mark, "TMPDIR": directory}  # a module leaves no cluster of its own behind
        command = [sys.executable, "-m", "tests.shared_cluster"]
        starting = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[1]
        )
        with starting:
            assert starting.stdin is not None
            assert starting.stdout is not None
            line = starting.stdout.readline()
            assert line, "the shared cluster did not start"
            starting.wait()  # the cluster is in a child process
            yield SharedCluster(*json.loads(line))
        left = wait_for_end(marked_processes(mark), END_SECONDS)
        stories = [f"{process.pid}: {process.cmdline()}" for process in left if process.is_running()]
        for process in left:
            process.kill()
        assert not stories, f"processes of the shared cluster are left behind: {stories}"
        assert not list(Path(directory).iterdir()), "temporary files of the shared cluster are left behind"


@pytest.fixture(scope="module")
def cluster(shared_cluster: SharedCluster) -> Iterator[SchedulerClusterCombo]:
    """The shared cluster for one module. Fails the module if it leaves tasks there."""
    from scaler import Client  # noqa: PLC0415 (unit tests do not need this import)

    yield shared_cluster  # type: ignore[misc]
    # Clients shared by libraries live as long as the process, and hold their tasks.
    for client in vars(sys.modules["scaler.client.client"])["_shared"].values():
        client.disconnect()
    with Client(shared_cluster.address) as client:
        is_idle = within(END_SECONDS, lambda: not (client.tasks(state="running") or client.cluster().waiting))
        assert is_idle, f"tasks are left behind: {client.tasks(state='running')} {client.cluster().waiting}"
