"""What the answers of batch systems mean."""

from __future__ import annotations

import json
import shlex

import pytest

from scaler.protocol.messages import UnitState
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.systems import SYSTEMS, job_script, seconds_of

SLURM, PBS, LSF = (SYSTEMS[name] for name in ("slurm", "pbs", "lsf"))


def squeue_line(state: str, code: int = 0, left: str = "5:00", nodes: str = "n1", reason: str = "None") -> str:
    fields = (
        ("7_0", 40),
        (state, 20),
        (str(code), 12),
        ("10", 16),
        ("1:00", 20),
        (left, 20),
        (nodes, 80),
        (reason, 300),
    )
    return "".join(value.ljust(width) for value, width in fields) + "\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("1:15", 75), ("0:01:15", 75), ("2-00:00:01", 172_801), ("UNLIMITED", 0), ("NOT_SET", 0), ("", 0)],
)
def test_durations_are_read_in_every_form(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("line", "state", "reason", "remaining_seconds"),
    [
        (squeue_line("PENDING", nodes="", reason="Resources"), UnitState.WAITING, "queued: Resources", 0),
        (squeue_line("PENDING", nodes="", reason="None"), UnitState.WAITING, "", 0),
        (squeue_line("CONFIGURING"), UnitState.PENDING, "", 0),
        (squeue_line("RUNNING"), UnitState.RUNNING, "", 300),
        (squeue_line("SUSPENDED"), UnitState.RUNNING, "suspended by Slurm (n1)", 300),
        (squeue_line("COMPLETING"), UnitState.STOPPING, "", 0),
        (squeue_line("COMPLETED"), UnitState.STOPPED, "", 0),
        (squeue_line("FAILED", 256), UnitState.FAILED, "exit code 1 (n1)", 0),
        (squeue_line("FAILED", 9), UnitState.FAILED, "killed by signal 9 (SIGKILL) (n1)", 0),
        (squeue_line("TIMEOUT"), UnitState.FAILED, "at its time limit, slurm_time_minutes (n1)", 0),
        (squeue_line("OUT_OF_MEMORY", 9), UnitState.FAILED, "more memory than slurm_memory (n1)", 0),
        (squeue_line("NEW_STATE"), UnitState.RUNNING, "", 300),
    ],
)
def test_states_of_slurm_are_states_of_units(
    line: str, state: UnitState, reason: str, remaining_seconds: float
) -> None:
    seen = SLURM.listed(line, "any")["7_0"]
    assert (seen.state, seen.reason, seen.remaining_seconds, seen.age_seconds) == (state, reason, remaining_seconds, 70)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (0, UnitState.STOPPED, "exit code 0"),
        (1, UnitState.FAILED, "exit code 1"),
        (271, UnitState.FAILED, "killed by signal 15 (SIGTERM)"),
        (-3, UnitState.FAILED, "job exec failed"),
    ],
)
def test_an_exit_status_of_pbs_says_how_a_job_ended(status: int, state: UnitState, reason: str) -> None:
    job = {"Job_Name": "mine", "job_state": "F", "Exit_status": status}
    job |= {"comment": "job exec failed"} if status < 0 else {}
    output = json.dumps({"Jobs": {"1.server": job, "2.server": {"Job_Name": "other", "job_state": "R"}}})
    [(unit_id, seen)] = PBS.listed(output, "mine").items()
    assert (unit_id, seen.state, seen.reason) == ("1.server", state, reason)


def test_lsf_says_why_it_ended_a_job() -> None:
    seen = LSF.listed("5|EXIT|143|61 second(s)|-|-|TERM_RUNLIMIT: job killed after reaching LSF run time limit", "any")
    assert seen["5"].state is UnitState.FAILED
    assert seen["5"].reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_answer_without_the_id_of_a_job_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="did not print the id of a job: 'welcome'"):
        SYSTEMS[name].submitted("welcome", 1)


def test_what_a_site_prints_around_the_id_does_not_matter() -> None:
    assert SLURM.submitted("welcome to our cluster\n77;main\n", 2) == ["77_0", "77_1"]
    assert PBS.submitted("welcome\n77.server\n", 1) == ["77.server"]
    assert LSF.submitted("Job <77> is submitted to default queue <normal>.\n", 1) == ["77"]


def test_directories_and_documents_are_one_word_of_the_shell_of_a_job() -> None:
    config = SlurmConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", slurm_time_minutes=1, slurm_python="my python"
    )
    lines = [shlex.split(line) for line in job_script(config, SLURM, "it's $HOME", '/a "b" $c').splitlines()[2:]]
    assert ["export", "SCALER_WORKER_CONFIG=it's $HOME"] in lines
    assert ["exec", '9</a "b" $c', "||", "exit", "1"] in lines
    assert lines[-1] == ["exec", "my python", "-P", "-m", "scaler.worker"]
