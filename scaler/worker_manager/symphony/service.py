"""The service of a Symphony application: runs tasks one after another, in one process per slot."""

from __future__ import annotations

import importlib
import sys
from array import array
from typing import Any

from scaler.errors import ConfigError
from scaler.interpreter import HASH_SEED, import_from_working_directory
from scaler.offload.job import run_call
from scaler.process_state import begin_afresh
from scaler.worker.credential import take_credential

MISSING = (
    "soamapi, the Python library of IBM Spectrum Symphony, cannot be imported: it comes with the product, not "
    "from a package index. Install Symphony's client on this machine, source its profile (profile.platform), and add "
    "the directory of its Python API to PYTHONPATH"
)
LIBRARY = "soamapi"


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


def load_library() -> Any:
    try:
        return importlib.import_module(LIBRARY)
    except ImportError as error:  # for example, if a shared library is missing
        raise ConfigError(f"{MISSING} ({error})") from error


def payload_class(soamapi: Any) -> Any:
    class BytesMessage(soamapi.Message):  # type: ignore[misc]
        def __init__(self, data: bytes = b"") -> None:
            super().__init__()
            self.data = data

        def on_serialize(self, stream: Any) -> None:
            items = array("b", self.data)
            stream.write_byte_array(items, 0, len(items))

        def on_deserialize(self, stream: Any) -> None:
            self.data = stream.read_byte_array("b").tobytes()

    return BytesMessage


def container_class(soamapi: Any) -> Any:
    message_class = payload_class(soamapi)

    class Container(soamapi.ServiceContainer):  # type: ignore[misc]
        def on_invoke(self, task_context: Any) -> None:
            call = message_class()
            task_context.populate_task_input(call)
            task_context.set_task_output(message_class(run_call(call.data)))

        def _do_nothing(self, *_: Any) -> None:
            """Do nothing: functions remain loaded between tasks, and sessions share no state."""

        on_create_service = on_session_enter = on_session_leave = on_destroy_service = _do_nothing

    return Container


if __name__ == "__main__":
    sys.exit(main())
