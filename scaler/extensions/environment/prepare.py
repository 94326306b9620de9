"""Program that installs an environment's packages, then becomes its fork server."""

from __future__ import annotations

import os
import signal
import sys

from scaler.errors import ConfigError
from scaler.extensions.environment.installer import PACKED, provide, variables_of
from scaler.interpreter import ENVIRONMENT_VARIABLE, worker_command
from scaler.processes import end_with_parent
from scaler.serialization import parts_of
from scaler.worker.fork_server import MAX_REASON_BYTES, definition_of


def main() -> None:
    document, reason, agent_pid = map(int, sys.argv[3:])
    end_with_parent(signal.SIGKILL, agent_pid)

    def say(text: str) -> None:
        os.ftruncate(reason, MAX_REASON_BYTES)
        os.pwrite(reason, text.encode("utf-8", "replace"), MAX_REASON_BYTES)

    try:
        folder, lock = provide(bytes(parts_of(definition_of(document))[0]), "the packages of its environment", say)
    except Exception as error:  # noqa: BLE001 (the agent reports any error)
        text = str(error) if isinstance(error, ConfigError) else f"its environment cannot be prepared: {error!r}"
        os.pwrite(reason, text.encode("utf-8", "replace"), 0)
        sys.exit(1)
    os.set_inheritable(lock, True)
    variables = {**variables_of(folder), ENVIRONMENT_VARIABLE: str(folder / PACKED)}
    code = f"import site; site.addsitedir({str(folder)!r}); from scaler.worker.fork_server import main; main()"
    command = [*worker_command("")[:-2], "-c", code, *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **variables})  # noqa: S606


if __name__ == "__main__":
    main()
