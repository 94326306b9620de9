"""Profiles of real tasks: the hot spot is found, even in running tasks, and none exists if disabled."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler.errors import UsageError
from tests.short_forms import short_form
from tests.waiting import until, wait_for_file

SECONDS = 30


def hot(count: int) -> int:
    return sum(number * number for number in range(count))


def cool(count: int) -> int:
    return sum(range(count // 20))


def work(path: str) -> int:
    """Work until a file exists."""
    rounds = 0
    while not Path(path).exists():
        hot(100_000)
        cool(100_000)
        rounds += 1
    return rounds


def work_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hot(10_000)


def work_a_little(count: int) -> int:
    return hot(count)


def in_a_thread(path: str) -> None:
    beside = threading.Thread(target=work, args=(path,))
    beside.start()
    wait_for_file(path)
    beside.join()


def test_hot_spot_of_a_running_task_is_found_immediately(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with SchedulerClusterCombo(n_workers=1) as combo, Client(combo.get_address()) as client:
        client.submit(work_a_little, 1).result(SECONDS)  # imports this module, which takes long
        future = client.submit(work, str(go))
        try:
            found = client.profile(future)
            later = client.profile(future, seconds=1.0)
        finally:
            go.touch()
        future.result(SECONDS)
    assert (found.name, found.of) == ("work", "task")
    frames = {each.frame.partition(" ")[0]: each for each in later.hottest(50)}
    assert later.hottest(1)[0].frame.startswith("hot.<locals>.<genexpr> (integration/test_profiles.py:")
    assert frames["hot"].total_us > 0.7 * later.stacks.total_us
    assert all(stack[0].startswith("work ") for stack in later.stacks.own_us)  # no frame of the processor is below it
    assert 0.2 < found.seconds < SECONDS
    assert later.samples > 5
    assert "hot.<locals>.<genexpr>" in str(later)


def test_short_tasks_share_the_profile_of_their_function(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    with Client(cluster.get_address()) as client:
        futures = [client.submit(work_a_little, 10) for _ in range(10)]
        begun = time.monotonic()
        found = until(
            lambda: (
                client.map(work_a_little, [200_000] * 20)
                and (each := client.profile("work_a_little")).samples > 5
                and each
            ),
            # Ten samples a second are taken while a task runs, and on a busy machine usually none.
            seconds=50,
        )
        assert found.of == "function"
        # A sample counts the time since the previous one, so times add up to the elapsed time.
        assert found.seconds <= (time.monotonic() - begun + 1) * 2
        of_tasks = [client.profile(each) for each in futures]
        assert {each.name for each in of_tasks} == {"work_a_little"}
        # On a busy machine, even a short task may be sampled.
        assert "function" in {each.of for each in of_tasks}
        found.save(tmp_path / "stacks.txt")
        nothing = client.profile("no such function")
        assert (nothing.of, nothing.samples, str(nothing)) == ("", 0, "no such function: no samples")
        for bad in (1, None):
            with pytest.raises(UsageError, match="neither a future nor a function name"):
                client.profile(bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="seconds"):
            client.profile(futures[0], seconds=-1)
    assert (tmp_path / "stacks.txt").read_text() == found.stacks.collapsed()


def test_only_the_main_thread_of_a_task_counts(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Client(cluster.get_address()) as client:
        future = client.submit(in_a_thread, str(go))
        found = client.profile(future)
        go.touch()
        future.result(SECONDS)
    assert found.samples
    assert not any(each.frame.startswith(("hot", "work")) for each in found.hottest(50))


@pytest.mark.parametrize("interval_seconds", short_form([0.02, 0.0]))
def test_profile_interval_sets_the_sampling_rate_and_0_disables_it(interval_seconds: float) -> None:
    with (
        SchedulerClusterCombo(n_workers=1, profile_interval_seconds=interval_seconds) as combo,
        Client(combo.get_address()) as client,
    ):
        client.submit(work_for, 2.5).result(SECONDS)  # the first report arrives after 1 s
        if interval_seconds:
            found = until(lambda: (each := client.profile("work_for")).samples and each)
            assert 0.5 < found.seconds / found.samples / interval_seconds < 3
        else:
            assert client.profile("work_for").samples == 0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "scaler.cli", "scaler", "profile", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS)


def test_command_lists_functions_prints_hot_frames_and_writes_files(
    cluster: SchedulerClusterCombo, tmp_path: Path
) -> None:
    address, file = cluster.get_monitor_address(), tmp_path / "profile.txt"
    with Client(cluster.get_address()) as client:
        future = client.submit(work_for, 2.5)
        future.result(SECONDS)
        until(lambda: client.profile("work_for").samples)
    assert "work_for" in command(address).stdout
    for subject in ("work_for", future.task_id.hex()):
        lines = command("--of", subject, address).stdout.splitlines()
        assert lines[0].startswith("work_for: ")
        assert any("hot (" in line for line in lines)
    assert "samples of work_for to" in command("--of", "work_for", "--output", str(file), address).stdout
    assert "work_for (" in file.read_text()
    assert " (integration/test_profiles.py:" in command("--of", "work_for", "--output", "-", address).stdout
    for wrong, why in (
        (("--of", "none"), "no samples of 'none'"),
        (("--output", "x"), "--output writes one profile"),
        (("--of", "work_for", "--output", str(tmp_path / "no" / "file")), "cannot write"),
    ):
        done = command(*wrong, address)
        assert (done.returncode, why in done.stderr) == (2, True)
