"""What a user without any logging set up sees on stderr: programs of their own, compared as text."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.protocol.messages import Cancel, Explain, Message
from tests.integration.client_rig import RigScheduler

SECONDS = 60


def written(directory: Path, text: str) -> Path:
    program = directory / "program.py"
    program.write_text(textwrap.dedent(text).lstrip())
    return program


def run(directory: Path, text: str, *arguments: str) -> str:
    """Run a program, and return what it wrote on stderr."""
    command = [sys.executable, str(written(directory, text)), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return ended.stderr.replace(str(directory), "DIR")


@contextmanager
def started(directory: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that ends with its stdin; at the end it must have written nothing more on stderr."""
    command = [sys.executable, str(written(directory, text)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1) as program:
        try:
            yield program
            assert program.communicate(timeout=SECONDS)[1] == ""
        finally:
            program.kill()


def test_a_requirement_that_nothing_offers_is_said_once_on_stderr(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    text = """
        import sys
        from scaler import Client

        with Client(sys.argv[1]) as client:
            for number, capability in enumerate(sys.stdin):
                gpu = client.submit_verbose(abs, (-1,), capabilities={"gpu": 4}, priority=number)
                other = client.submit_verbose(abs, (-1,), capabilities={capability.strip(): None})
    """
    said = (
        "scaler: tasks that need {} wait: no worker offers {}, and no worker manager could start one that does: "
        "there is no {}. Offered are: none. "
        "Ask for less in capabilities=..., or start workers with --per-worker-capabilities {}\n"
    )
    with started(tmp_path, text, cluster.get_address()) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        for capability in ("linux", "tpu"):
            program.stdin.write(f"{capability}\n")
            if capability == "linux":
                assert program.stderr.readline() == said.format("gpu=4", "gpu=4", "gpu", "gpu=4")
            assert program.stderr.readline() == said.format(*[capability] * 4)


def test_a_program_without_a_scheduler_says_so_once_for_all_its_threads(tmp_path: Path) -> None:
    text = """
        import sys, threading
        from scaler import Client

        clients = []
        threads = [threading.Thread(target=lambda: clients.append(Client(sys.argv[1]))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        futures = [client.submit(abs, -1) for client in clients]
        results = [future.result() for future in futures]
    """
    with RigScheduler() as reserved:
        address = reserved.address
    lost = (
        rf"scaler: no scheduler answers at {address}: tried for \d s \(.*nothing listens there\); {{}}. "
        "Check that it runs, that the address is right, and that no firewall is between\n"
    )
    with started(tmp_path, text, address) as program:
        assert program.stderr is not None
        assert re.fullmatch(lost.format("gives up after timeout_seconds=60"), program.stderr.readline())
        with RigScheduler(address) as scheduler:
            assert re.fullmatch(rf"scaler: connected to {address}, after \d s\n", program.stderr.readline())
            scheduler.next_tasks(3)
        lost_later = program.stderr.readline()
        assert re.fullmatch(lost.format("tasks that wait for it fail after 30 s"), lost_later)
        with RigScheduler(address) as scheduler:
            assert re.fullmatch(rf"scaler: connected to {address}, after \d s\n", program.stderr.readline())
            for task in scheduler.next_tasks(3):
                scheduler.peer = task[:8]
                scheduler.finish({task: 1})
            program.wait(SECONDS)


def test_a_timeout_says_why_the_task_has_not_ended(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    text = """
        import concurrent.futures, sys
        from scaler import Client, ScalerExecutor

        def attempt(call):
            try:
                call()
            except concurrent.futures.TimeoutError as late:
                return repr(late)

        with Client(sys.argv[1]) as client, concurrent.futures.ThreadPoolExecutor() as threads:
            one = client.submit_verbose(abs, (-1,), capabilities={"gpu": 4}, name="one")
            two = client.submit_verbose(abs, (one,), name="two")
            mapped = ScalerExecutor(client).map(abs, [two, -1], timeout=4, chunksize=2)
            calls = [lambda: one.result(4), lambda: one.exception(4), lambda: two.result(4), lambda: list(mapped)]
            for line in threads.map(attempt, calls):
                print(line, file=sys.stderr)
            client.clear()
    """
    said = run(tmp_path, text, cluster.get_address())
    why = "no worker offers gpu=4, and no worker manager could start one that does: there is no gpu"
    lines = [line for line in said.splitlines() if not line.startswith("scaler: ")]
    assert re.fullmatch(rf"TimeoutError\('one \(\w{{32}}\) has not ended: {why}'\)", lines[0])
    assert lines[1] == lines[0]
    assert re.fullmatch(r"TimeoutError\('two \(\w{32}\) has not ended: it needs .*one\(\).*'\)", lines[2])
    assert re.fullmatch(r"TimeoutError\('item 0 of map over abs has not ended: it needs .*two\(\).*'\)", lines[3])


def test_a_timeout_of_zero_asks_nobody_and_a_silent_scheduler_holds_nobody_up() -> None:
    with RigScheduler() as scheduler, Client(scheduler.address) as client:
        future = client.submit(abs, -1)
        scheduler.next_tasks(1)
        for timeout in (0, 0.01, 0.5):
            with pytest.raises(
                TimeoutError, match=rf"^abs \({future.task_id.hex()}\) has not ended: the scheduler has it$"
            ):
                future.result(timeout)
        future.cancel()
        asked = [scheduler.next(Message)]
        while not isinstance(asked[-1], Cancel):
            asked.append(scheduler.next(Message))
        assert sum(isinstance(message, Explain) for message in asked) == 1
