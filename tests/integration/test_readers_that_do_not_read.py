"""Readers that never read: output is dropped and counted; tasks and futures continue."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.short_forms import short_form
from tests.waiting import until

STREAMING = textwrap.dedent("""
    import sys
    from pathlib import Path
    from scaler import Client

    def talk(line):
        for _ in range(900):
            print(line * 1000)

    with Client() as client:
        streaming = client.options(stream_output=True)
        for future in [streaming.submit(talk, "a") for _ in range(8)]:
            future.result(30)
        Path(sys.argv[1]).write_text(str(client.submit(abs, -1).result(30)))
    sys.stdout.close()
""")
PRINTING = textwrap.dedent("""
    import sys
    from pathlib import Path
    from scaler import Client

    def talk():
        import os, subprocess
        for _ in range(3):
            print("b" * 10_000, flush=True)
            print("c" * 10_000, file=sys.stderr, flush=True)
        sys.stdout.flush()
        return os.fstat(1).st_mode > 0

    with Client() as client:
        found = [client.submit(talk).result(30) for _ in range(5)]
        found.append(client.options(stream_output=True).submit(talk).result(30))
    Path(sys.argv[1]).write_text(str(all(found)))
""")


def test_client_with_blocked_stdout_gets_results_and_counts_drops(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    command = [sys.executable, "-c", STREAMING, str(answer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            until(answer.exists, 60)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "scaler: output dropped: lines=" in output
    assert process.returncode == 0


@pytest.mark.parametrize("kind", short_form(["full", "closed"]))
def test_tasks_survive_printing_to_a_full_disk_or_a_closed_pipe(kind: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    command = [sys.executable, "-c", PRINTING, str(answer)]
    if kind == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe()
        os.close(reader)
    try:
        subprocess.run(command, stdout=output, stderr=output, timeout=60, check=False)
    finally:
        os.close(output)
    assert answer.read_text() == "True"


@pytest.mark.parametrize("kind", short_form(["full", "closed"]))
def test_worker_with_an_unwritable_stdout_runs_printing_tasks(kind: str, tmp_path: Path) -> None:
    from scaler import Client, SchedulerClusterCombo  # noqa: PLC0415

    def talk() -> int:
        return sum(print("d" * 10_000, flush=True) is None for _ in range(3))

    with SchedulerClusterCombo(n_workers=0) as cluster:
        if kind == "full":
            output = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, output = os.pipe()
            os.close(reader)
        command = [sys.executable, "-m", "scaler.cli", "cluster", cluster.get_address(), "-n", "1"]
        with subprocess.Popen(command, stdout=output, stderr=output) as process:
            os.close(output)
            try:
                with Client(cluster.get_address()) as client:
                    assert [client.submit(talk).result(30) for _ in range(3)] == [3, 3, 3]
                    assert client.options(stream_output=True).submit(talk).result(30) == 3
            finally:
                process.terminate()
    assert process.returncode == 0
