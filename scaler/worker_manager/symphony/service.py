"""The service of a Symphony application: runs tasks one after another, in one process per slot."""

from __future__ import annotations

import sys
from typing import Any

from scaler.errors import ConfigError
from scaler.interpreter import HASH_SEED, import_from_working_directory
from scaler.process_state import begin_afresh
from scaler.worker.credential import take_credential
from scaler.worker.job import run_call
from scaler.worker_manager.symphony.session import load_library, payload_class


def main() -> int:
    begin_afresh()
    take_credential(HASH_SEED)
    try:
        soamapi = load_library()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    import_from_working_directory()
    container_class(soamapi)().run()
    return 0


def container_class(soamapi: Any) -> Any:
    message_class = payload_class(soamapi)

    class Container(soamapi.ServiceContainer):  # type: ignore[misc]
        def on_invoke(self, task_context: Any) -> None:
            call = message_class()
            task_context.populate_task_input(call)
            task_context.set_task_output(message_class(run_call(call.data)))

        def _do_nothing(self, *_: Any) -> None:
            """Functions stay loaded between tasks, and sessions share nothing."""

        on_create_service = on_session_enter = on_session_leave = on_destroy_service = _do_nothing

    return Container


if __name__ == "__main__":
    sys.exit(main())
