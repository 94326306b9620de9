"""Deprecated names of settings, sections, and arguments, including the names of `opengris-scaler`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import TypeVar

from scaler.config.setting import Alias
from scaler.errors import UsageError

_log = logging.getLogger(__name__)

T = TypeVar("T")

ADAPTERS = {"native_worker_adapter": "baremetal_native", "symphony_worker_adapter": "symphony"}
"""Deprecated worker manager sections, and their types."""
GUI = "gui"  # deprecated section of the web server
RETIRED = {
    "broadcast_interval_seconds": (),
    "garbage_collect_interval_seconds": ("-gc",),
    "hard_processor_suspend": ("-hps",),
    "history_limit_bytes": (),
    "io_threads": ("-it",),
    "load_balance_seconds": ("-ls",),
    "load_balance_trigger_times": ("-lbt",),
    "max_processor_memory_growth": (),
    "status_report_interval_seconds": ("-sri",),
    "task_log_max_size": (),
    "trim_memory_threshold_bytes": ("-tm",),
    "worker_type": (),
}
"""Settings that are accepted everywhere but have no effect, and their short flags."""
_ALLOCATE = {"even": "even_load", "even_load": "even_load", "capability": "capability"}
_GUI_ADDRESS = re.compile(r"(?:tcp://|http://)?(?P<host>\[[^\]]+\]|[^\s\[\]:/]+):(?P<port>[0-9]{1,5})/?")


def without_retired(values: Mapping[str, T]) -> dict[str, T]:
    for key in values.keys() & RETIRED:
        _warn(f"{key} is no longer needed and has no effect")
    return {key: value for key, value in values.items() if key not in RETIRED}


@cache
def _warn(text: str) -> None:
    _log.warning(text)


def rename_arguments(arguments: MutableMapping[str, object]) -> None:
    """Rename a combo's deprecated arguments in place. Raises UsageError if both names are given."""
    if "per_worker_queue_size" in arguments:
        if "per_worker_task_queue_size" in arguments:
            raise UsageError("per_worker_queue_size is an alias of per_worker_task_queue_size: set only one")
        arguments["per_worker_task_queue_size"] = arguments.pop("per_worker_queue_size")


def _content_of_allocate_policy(value: object) -> object:
    allocate = _ALLOCATE.get(value) if isinstance(value, str) else None
    if allocate is None:
        raise ValueError(f"must be one of {', '.join(_ALLOCATE)}")
    return f"allocate={allocate}; scaling=vanilla"


def _gui_address(value: object) -> re.Match[str]:
    found = _GUI_ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("must be host:port, such as 127.0.0.1:50001")
    return found


OF_SCHEDULER_ADDRESS = (Alias("scheduler_address"),)
OF_OBJECT_STORAGE_ADDRESS = (Alias("object_storage_address"),)
OF_POLICY_CONTENT = (Alias("allocate_policy", _content_of_allocate_policy),)
OF_NUM_OF_WORKERS = (Alias("max_task_concurrency"),)
OF_MAX_TASK_CONCURRENCY = (Alias("num_of_workers"),)
OF_WEB_HOST = (Alias("gui_address", lambda value: _gui_address(value)["host"].strip("[]")),)
OF_WEB_PORT = (Alias("port"), Alias("gui_address", lambda value: int(_gui_address(value)["port"])))
OF_TIMEOUT_SECONDS = (Alias("timeout"),)
