"""`scaler submit`: a script on a worker, with the output and the exit code of a local run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scaler import SchedulerClusterCombo
from tests.waiting import until

pytestmark = pytest.mark.timeout(60)
SECONDS = 20


def started(cluster: SchedulerClusterCombo, *arguments: str, **options: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scaler.cli", "scaler", "submit", "--address", cluster.get_address(), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def submitted(cluster: SchedulerClusterCombo, *arguments: str, source: str = "") -> tuple[int, str, str]:
    process = started(cluster, *arguments)
    output, errors = process.communicate(source, timeout=SECONDS)
    return process.returncode, output, errors


def test_prints_both_streams_and_exits_with_the_code(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nprint('wrong', file=sys.stderr)\nsys.exit(7)\n")
    found = submitted(cluster, str(script), "--address", "a b", "-h", "--", "*")
    assert found == (7, "['--address', 'a b', '-h', '--', '*']\n", "wrong\n")


def test_takes_a_script_from_the_standard_input(cluster: SchedulerClusterCombo) -> None:
    assert submitted(cluster, "-", "x", source="import sys; print(sys.argv[1])") == (0, "x\n", "")


def test_traceback_names_the_script_and_the_code_is_one(cluster: SchedulerClusterCombo) -> None:
    code, output, errors = submitted(cluster, "-", source="def f():\n    1 / 0\nf()\n")
    assert (code, output) == (1, "")
    assert 'stdin.py", line 2, in f\n' in errors
    assert errors.endswith("ZeroDivisionError: division by zero\n")


def test_all_output_arrives(cluster: SchedulerClusterCombo) -> None:
    code, output, _ = submitted(cluster, "-", source="for number in range(300_000): print(number)")
    assert code == 0
    assert output.splitlines() == [str(number) for number in range(300_000)]


def test_ctrl_c_stops_the_script_and_its_children(cluster: SchedulerClusterCombo, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text("import subprocess\nchild = subprocess.Popen(['sleep', '300'])\nprint(child.pid)\nchild.wait()\n")
    process = started(cluster, str(script))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    until(lambda: not psutil.pid_exists(child), SECONDS)


def test_closed_output_pipe_ends_the_command(cluster: SchedulerClusterCombo) -> None:
    process = started(cluster, "-")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("while True: print('line')\n")
    process.stdin.close()
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_missing_script_is_a_usage_error(cluster: SchedulerClusterCombo) -> None:
    code, _, errors = submitted(cluster, "absent.py")
    assert (code, errors) == (2, "scaler submit: cannot read the script absent.py: No such file or directory\n")
