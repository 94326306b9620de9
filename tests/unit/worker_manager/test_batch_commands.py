"""The meaning of batch systems' answers."""

from __future__ import annotations

import os
import shlex

import pytest

from scaler.protocol.messages import UnitState
from scaler.worker_manager.polled import MIN_REMAINING_SECONDS
from scaler.worker_manager.slurm import SlurmConfig
from scaler.worker_manager.slurm.backend import clean_environment, job_script
from scaler.worker_manager.slurm.systems import SYSTEMS, BatchSystem, seconds_of

SLURM, PBS, LSF = (SYSTEMS[name] for name in ("slurm", "pbs", "lsf"))


def squeue_line(
    state: str,
    code: int = 0,
    left: str = "5:00",
    nodes: str = "n1",
    reason: str = "None",
    *,
    name: str = "mine",
    job: str = "7_0",
    tasks: int = 1,
) -> str:
    fields = (
        (name, 20),
        (job, 40),
        (str(tasks), 10),
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
def test_durations_are_parsed_in_every_form(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("line", "state", "reason", "remaining_seconds"),
    [
        (squeue_line("PENDING", nodes="", reason="Resources"), UnitState.WAITING, "queued: Resources", 0),
        (squeue_line("CONFIGURING"), UnitState.PENDING, "", 0),
        (squeue_line("RUNNING"), UnitState.RUNNING, "", 300),
        (squeue_line("RUNNING", left="UNLIMITED"), UnitState.RUNNING, "", 0),
        (squeue_line("RUNNING", left="INVALID"), UnitState.RUNNING, "", MIN_REMAINING_SECONDS),
        (squeue_line("SUSPENDED"), UnitState.RUNNING, "suspended by Slurm (n1)", 300),
        (squeue_line("COMPLETING"), UnitState.STOPPING, "", 0),
        (squeue_line("COMPLETED"), UnitState.STOPPED, "", 0),
        (squeue_line("FAILED", 256), UnitState.FAILED, "exit code 1 (n1)", 0),
        (squeue_line("FAILED", 9), UnitState.FAILED, "killed by signal 9 (SIGKILL) (n1)", 0),
        (squeue_line("TIMEOUT"), UnitState.FAILED, "it reached its time limit, slurm_time_minutes (n1)", 0),
        (squeue_line("OUT_OF_MEMORY", 9), UnitState.FAILED, "it used more memory than slurm_memory (n1)", 0),
        (squeue_line("NEW_STATE"), UnitState.PENDING, "in the unknown state NEW_STATE (n1)", 0),
    ],
)
def test_slurm_states_map_to_unit_states(line: str, state: UnitState, reason: str, remaining_seconds: float) -> None:
    seen = SLURM.listed(line, "mine")["7_0"]
    assert (seen.state, seen.reason, seen.remaining_seconds, seen.age_seconds) == (state, reason, remaining_seconds, 70)


def test_job_for_a_gang_has_a_unit_on_each_node() -> None:
    lines = squeue_line("RUNNING", name="mine+", job="7", tasks=3) + squeue_line("RUNNING")
    assert list(SLURM.listed(lines, "mine")) == ["7.0", "7.1", "7.2", "7_0"]
    assert SLURM.submitted("7\n", 1, 3) == ["7.0", "7.1", "7.2"]
    assert {SLURM.job_of(unit_id) for unit_id in ("7.0", "7.2")} == {"7"}


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (0, UnitState.STOPPED, "exit code 0"),
        (1, UnitState.FAILED, "exit code 1"),
        (271, UnitState.FAILED, "killed by signal 15 (SIGTERM)"),
        (-3, UnitState.FAILED, "job exec failed"),
    ],
)
def test_pbs_exit_status_explains_how_a_job_ended(status: int, state: UnitState, reason: str) -> None:
    output = f"Job Id: 1.server\n    Job_Name = mine\n    job_state = F\n    Exit_status = {status}\n"
    output += "    comment = job \n\texec failed\n" if status < 0 else ""
    output += "\nJob Id: 2.server\n    Job_Name = other\n    job_state = R\n\n"
    [(unit_id, seen)] = PBS.listed(output, "mine").items()
    assert (unit_id, seen.state, seen.reason) == ("1.server", state, reason)


def test_lsf_explains_why_a_job_ended() -> None:
    line = "mine|5|EXIT|143|61 second(s)|-|-|TERM_RUNLIMIT: job killed after reaching LSF run time limit"
    seen = LSF.listed(line, "mine")
    assert seen["5"].state is UnitState.FAILED
    assert seen["5"].reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


@pytest.mark.parametrize("name", SYSTEMS)
def test_answer_without_a_job_id_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="did not print the id of a job: 'welcome'"):
        SYSTEMS[name].submitted("welcome", 1)


def test_output_of_a_sites_wrapper_around_the_id_is_ignored() -> None:
    assert SLURM.submitted("42\nunread messages\n77;main\n", 2) == ["77_0", "77_1"]
    assert SLURM.submitted("77\n", 1) == ["77"]
    assert SLURM.submitted("Submitted batch job 77 on cluster main\n", 1) == ["77"]
    assert PBS.submitted("welcome\n77.server\n", 1) == ["77.server"]
    assert LSF.submitted("Job <77> is submitted to default queue <normal>.\n", 1) == ["77"]


def test_directories_and_documents_are_single_shell_words() -> None:
    config = SlurmConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", slurm_time_minutes=1, slurm_python="my python"
    )
    lines = [
        shlex.split(line)
        for line in job_script(config, SLURM, "it's $HOME", '/a "b" $c', ["/here", "/log dir"]).splitlines()[5:]
    ]
    assert lines[0] == ["cd", "/here", "||", "cd", "/log dir", "||", "exit"]
    assert ["export", "SCALER_WORKER_CONFIG=it's $HOME"] in lines
    assert ["exec", '9</a "b" $c', "||", "exit", "1"] in lines
    assert lines[-1] == ["exec", "my python", "-P", "-m", "scaler.worker"]


ODD_VALUES = """\
Job Id: 1.server
    Job_Name = mine
    job_state = R
    resources_used.walltime = 00:01:00
    resources_used.vmem = -nan
    Resource_List.walltime = 00:11:00
    Variable_List = A=0042,B=c:\\temp,C=a\ttab,
\tJob_Name = not a name
    queue = workq

"""
SQUEUE_JOB = squeue_line("RUNNING")
REVOKED = squeue_line("REVOKED")


@pytest.mark.parametrize(
    ("system", "output", "unit_id"),
    [
        (SLURM, f"Welcome!\n\x1b]0;node\x07{SQUEUE_JOB}slurm_load_jobs error: stale\n", "7_0"),
        (SLURM, SQUEUE_JOB.replace("7_0", "x_y") + SQUEUE_JOB, "7_0"),
        (SLURM, f"CLUSTER: one\n{SQUEUE_JOB}CLUSTER: two\n{REVOKED}", "7_0"),
        (SLURM, f"CLUSTER: two\n{REVOKED}CLUSTER: one\n{SQUEUE_JOB}", "7_0"),
        (PBS, f"Welcome!\n{ODD_VALUES}", "1.server"),
        (LSF, "Welcome!\nmine|5|RUN|-|61 second(s)|0:10 L|-|-\nmine|6\n", "5"),
    ],
)
def test_lines_about_foreign_jobs_are_ignored(system: BatchSystem, output: str, unit_id: str) -> None:
    jobs = system.listed(output, "mine")
    assert {found: job.state for found, job in jobs.items()} == {unit_id: UnitState.RUNNING}


@pytest.mark.parametrize("options", [("-M", "far"), ("-Mfar",), ("--clusters=far",), ("--cluster=far",)])
def test_jobs_are_listed_and_cancelled_on_the_cluster_of_their_options(options: tuple[str, ...]) -> None:
    config = SlurmConfig(
        scheduler_address="tcp://127.0.0.1:1", worker_manager_id="m", slurm_time_minutes=1, slurm_options=options
    )
    assert "--clusters=far" in SLURM.listing(config, "mine")
    assert SLURM.cancel(config, ["7"]) == ["scancel", "--clusters=far", "7"]


def test_commands_drop_allocation_variables_but_keep_user_defaults() -> None:
    kept = {
        "SLURM_CONF": "/c",
        "SLURM_JWT": "j",
        "SBATCH_ACCOUNT": "a",
        "PBS_SERVER": "s",
        "LSF_ENVDIR": "/l",
        "HOME": "/h",
    }
    dropped = ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_TIME_FORMAT", "SBATCH_TIMELIMIT", "PBS_JOBID", "SCALER_X")
    found = clean_environment({**kept, **dict.fromkeys(dropped, "1"), "LC_ALL": "de_DE.UTF-8"})
    assert found == {**kept, "LC_ALL": "C", "PATH": os.defpath}
