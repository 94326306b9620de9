"""`python -m scaler.worker`: start one worker, configured by the JSON document in SCALER_WORKER_CONFIG.

The fork server starts before any thread, and before the agent is imported, which would cost each processor 7 MB.
"""

from __future__ import annotations

import os
import sys
import warnings

from scaler.config.worker import LAST_WORDS_FD_VARIABLE, WorkerConfig
from scaler.errors import ScalerError
from scaler.output import OutputRelay
from scaler.process_state import begin_afresh
from scaler.processes import adopt_orphans, end_descendants
from scaler.worker.credential import take_credential
from scaler.worker.fork_server import ForkServer, start_fork_server


def main() -> int:
    status_fd = os.environ.get(LAST_WORDS_FD_VARIABLE)
    try:
        config = WorkerConfig.from_environment()
    except ScalerError as error:
        return _report(status_fd, error)
    begin_afresh()
    take_credential(config.hash_seed)  # may restart this program
    os.environ.pop(LAST_WORDS_FD_VARIABLE, None)
    if config.requirements:
        try:
            _provide(config, status_fd)
        except ScalerError as error:
            return _report(status_fd, error)
    adopt_orphans()  # in case the fork server exits first
    output = OutputRelay()
    fork_server = start_fork_server(config)
    with output:
        try:
            return _run(config, fork_server, status_fd)
        finally:
            fork_server.close()
            end_descendants()


def _provide(config: WorkerConfig, status_fd: str | None) -> None:
    """Install the packages that tasks need, and make this process and its children import them. Raises ConfigError."""
    from scaler.plugins import part_of  # noqa: PLC0415 (see the module)

    def say(text: str) -> None:
        sys.stderr.write(f"worker: {text}\n")
        sys.stderr.flush()
        if status_fd is not None:
            os.ftruncate(int(status_fd), 0)
            os.pwrite(int(status_fd), text.encode("utf-8", "replace"), 0)

    part_of("environment", "use", "requirements")(config.requirements, say)
    if status_fd is not None:
        os.ftruncate(int(status_fd), 0)


def _run(config: WorkerConfig, fork_server: ForkServer, status_fd: str | None) -> int:
    if sys.warnoptions:
        warnings.simplefilter("ignore")  # -W is meant for tasks; a warning must not stop the agent or fill its log
    from scaler.plugins import EXTENSIONS, part_of  # noqa: PLC0415 (see the module)
    from scaler.worker.agent.processors import ProcessorAgent  # noqa: PLC0415
    from scaler.worker.agent.shell import StatusFile, run_agent  # noqa: PLC0415

    try:
        if config.unit_id_from != "unit_id" or "units" in EXTENSIONS.built_in:
            config = part_of("units", "unit", "unit_id_from")(config, os.environ)
    except ScalerError as error:
        return _report(status_fd, error)
    status = StatusFile(status_fd)
    return run_agent(config, lambda connect: ProcessorAgent(config, connect, fork_server, status.write), status)


def _report(status_fd: str | None, error: ScalerError) -> int:
    from scaler.component import report  # noqa: PLC0415 (see the module)
    from scaler.worker.agent.shell import StatusFile  # noqa: PLC0415

    StatusFile(status_fd).write_error(error)
    return report("worker", error)


if __name__ == "__main__":
    sys.exit(main())
