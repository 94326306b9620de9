"""`python -m scaler.worker`: start one worker from the JSON document in SCALER_WORKER_CONFIG.

The fork server starts first, before there is any thread, and before the agent is imported: each processor would carry
what the agent alone needs, most of all asyncio, which is 7 MB.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from scaler.config.worker import LAST_WORDS_FD_VARIABLE, OWN_VARIABLES, WorkerConfig
from scaler.errors import ScalerError
from scaler.processes import end_others_born_with
from scaler.worker.fork_server import start_fork_server


def main() -> int:
    """Run one worker. Returns the exit code."""
    words_fd = os.environ.pop(LAST_WORDS_FD_VARIABLE, None)
    try:
        config = WorkerConfig.from_environment()
    except ScalerError as error:
        _leave_words(words_fd, error)
        return _report(error)
    fork_server = start_fork_server(config)
    try:
        config = dataclasses.replace(config, unit_id=_unit_id(config))
    except ScalerError as error:
        _leave_words(words_fd, error)
        fork_server.close()
        return _report(error)
    try:
        from scaler.worker.agent.run import run_agent  # noqa: PLC0415 (see the module)

        return run_agent(config, fork_server, lambda error: _leave_words(words_fd, error))
    finally:
        fork_server.close()
        end_others_born_with(*OWN_VARIABLES)  # what tasks have started may have left their process groups


def _leave_words(words_fd: str | None, error: Exception) -> None:
    """Tell whoever started this process why it ends."""
    if words_fd is not None:
        text = str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}"
        os.write(int(words_fd), text.encode("utf-8", "replace"))


def _report(error: ScalerError) -> int:
    from scaler.component import report  # noqa: PLC0415 (see the module)

    return report("worker", error)


def _unit_id(config: WorkerConfig) -> str:
    from scaler.worker.unit_id import learn_unit_id  # noqa: PLC0415 (see the module)

    return learn_unit_id(config, os.environ)


if __name__ == "__main__":
    sys.exit(main())
