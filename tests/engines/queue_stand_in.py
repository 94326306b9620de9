"""Fake PBS and LSF commands: a queue in a directory, whose jobs are processes of this machine.

As a program it is one of the commands, by its name: qsub, qselect, qstat, qdel, bsub, bjobs or bkill.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMANDS = ("qsub", "qselect", "qstat", "qdel", "bsub", "bjobs", "bkill")


def install(directory: Path) -> Path:
    """Create the commands in a directory that also contains their queue, and return it."""
    for name in COMMANDS:
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} {directory} {name} "$@"\n')
        path.chmod(0o755)
    return directory


def jobs_in(directory: Path) -> dict[str, dict[str, Any]]:
    file = directory / "queue.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def submit(directory: Path, arguments: list[str], variable: str, suffix: str, form: str) -> str:
    if option(arguments, "-q") == "nope":
        sys.exit("unknown queue")
    jobs = jobs_in(directory)
    job_id = f"{len(jobs) + 1}{suffix}"
    output = option(arguments, "-o").replace("%J", job_id)
    if output.endswith("/"):
        output += f"{job_id}.OU"
    job: dict[str, Any] = {"name": option(arguments, form), "at": time.time(), "arguments": arguments, "code": None}
    script, code = directory / f"{job_id}.sh", directory / f"{job_id}.code"
    script.write_text(sys.stdin.read())
    if "held" in arguments:
        job["pid"] = 0
    else:
        # The parent of the job records how it ends.
        text = f'{variable}={job_id} /bin/sh -s <"$0" >"$1" 2>&1; echo $? >"$2"'
        started = subprocess.Popen(
            ["/bin/sh", "-c", text, script, output, code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        job["pid"] = started.pid
    (directory / "queue.json").write_text(json.dumps({**jobs, job_id: job}))
    return job_id


def code_of(directory: Path, job_id: str) -> int | None:
    file = directory / f"{job_id}.code"
    text = file.read_text() if file.exists() else ""
    return int(text) if text else None


def cancel(directory: Path, job_ids: list[str]) -> None:
    failed = 0
    for job_id in job_ids:
        job = jobs_in(directory).get(job_id)
        if job is None or code_of(directory, job_id) is not None:
            sys.stderr.write(f"Unknown Job Id {job_id}\n")
            failed = 1
        elif job["pid"]:
            stop(job["pid"], signal.SIGTERM)
        else:
            (directory / f"{job_id}.code").write_text("143")
    sys.exit(failed)


def stop(shell: int, number: int) -> None:
    """Signal the processes of a job's shell."""
    for child in Path(f"/proc/{shell}/task/{shell}/children").read_text().split():
        os.kill(int(child), number)


def end_all(directory: Path) -> None:
    """Kill all jobs."""
    for job in jobs_in(directory).values():
        with contextlib.suppress(ProcessLookupError):
            if job["pid"]:
                os.killpg(job["pid"], signal.SIGKILL)


def pbs_job(directory: Path, job_id: str, job: dict[str, Any]) -> str:
    code = code_of(directory, job_id)
    clock = time.strftime("%H:%M:%S", time.gmtime(time.time() - job["at"]))
    limit = re.search(r"walltime=(\S+)", " ".join(job["arguments"]))
    seen = {"Job_Name": job["name"], "job_state": "R" if job["pid"] else "Q", "resources_used.walltime": clock}
    seen |= {"Resource_List.walltime": limit[1] if limit else "", "Variable_List": "A=0042,B=c:\\temp,C=a\tb"}
    if not job["pid"]:
        seen["comment"] = "Not Running: No \n\tavailable resources"
    if code is not None:
        seen |= {"job_state": "F", "Exit_status": str(code + 128 if code > 128 else code)}
    return "".join([f"Job Id: {job_id}\n", *(f"    {name} = {value}\n" for name, value in seen.items()), "\n"])


def lsf_line(directory: Path, job_id: str, job: dict[str, Any]) -> str:
    code = code_of(directory, job_id)
    ran = int(time.time() - job["at"])
    limit = int(option(job["arguments"], "-W"))
    if code is not None:
        return "|".join(
            (job["name"], job_id, "EXIT" if code else "DONE", str(code or "-"), f"{ran} second(s)", "-", "-", "-")
        )
    if not job["pid"]:
        return "|".join((job["name"], job_id, "PEND", "-", "0 second(s)", "-", "Job slot limit reached;", "-"))
    return "|".join((job["name"], job_id, "RUN", "-", f"{ran} second(s)", f"{limit // 60}:{limit % 60} L", "-", "-"))


def main(directory: Path, command: str, arguments: list[str]) -> None:
    lock = (directory / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock.fileno(), False)
    jobs = jobs_in(directory)
    match command:
        case "qsub":
            print(submit(directory, arguments, "PBS_JOBID", ".server", "-N"))
        case "bsub":
            print(f"Job <{submit(directory, arguments, 'LSB_JOBID', '', '-J')}> is submitted to queue <normal>.")
        case "qselect":
            if "-x" in arguments and (directory / "no-history").exists():
                sys.exit("qselect: PBS is not configured to maintain job history")
            name, ended = option(arguments, "-N"), option(arguments, "-s") == "F"
            own = [job_id for job_id, job in jobs.items() if job["name"] == name]
            print("\n".join(job_id for job_id in own if (code_of(directory, job_id) is not None) is ended))
        case "qstat":
            for job_id in arguments[arguments.index("-f") + 1 :]:
                sys.stdout.write(pbs_job(directory, job_id, jobs[job_id]))
        case "bjobs":
            name = option(arguments, "-J")
            for job_id, job in jobs.items():
                if job["name"] == name:
                    print(lsf_line(directory, job_id, job))
        case _:
            cancel(directory, arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
