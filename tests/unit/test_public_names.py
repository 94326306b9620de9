"""Public classes in tab completion, `help`, and `inspect.signature`."""

from __future__ import annotations

import concurrent.futures
import inspect
import typing
from collections.abc import Callable
from typing import Any

import scaler
from scaler.client.future import ProfilingInfo
from scaler.client.task_calls import ClientView
from scaler.client.tasks import ObjectReference
from scaler.config.servers import scheduler_model
from scaler.config.setting import describe
from scaler.config.worker_managers import ClusterConfig
from scaler.extensions.asynchronous.client import AsyncCompleted, AsyncView
from scaler.extensions.logs.client import TaskOutput
from scaler.extensions.maps.asynchronous import AsyncResults
from scaler.extensions.maps.pool import AsyncResult, PoolIterator
from scaler.extensions.maps.results import ResultIterator
from scaler.extensions.streams.asynchronous import AsyncStream
from scaler.extensions.streams.client import Stream

FUTURE = {name for name in dir(concurrent.futures.Future) if not name.startswith("_")}
SHOWN: dict[type, set[str]] = {
    scaler.Client: {
        *("submit", "submit_verbose", "map", "starmap", "imap", "imap_unordered", "get", "send_object"),
        *("gang", "stream", "trace"),
        *("futures", "cache", "explain", "logs", "who_has", "objects", "profile", "persist"),
        *(
            "bundle",
            "replay",
            "cluster",
            "table",
            "history",
            "tasks",
            "cancel",
            "run",
            "restart_workers",
            "wait_for_workers",
        ),
        *("gather", "as_completed", "progress", "options", "executor", "upload"),
        *("identity", "clear", "disconnect", "shutdown"),
    },
    AsyncResults: {"aclose", "close"},
    AsyncStream: {"aclose", "close", "future"},
    Stream: {"close"},
    AsyncCompleted: {"add"},
    scaler.ScalerExecutor: {"submit", "map", "shutdown"},
    scaler.Exponential: {"base", "cap", "jitter", "delays"},
    ClientView: {
        *("submit", "submit_verbose", "map", "starmap", "imap", "imap_unordered", "get", "cache", "gang", "stream"),
        *("options", "executor"),
    },
    scaler.Pool: {
        *("apply", "apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered"),
        *("close", "terminate", "join"),
    },
    AsyncResult: {"get", "wait", "ready", "successful"},
    PoolIterator: {"next"},
    scaler.ScalerFuture: {*FUTURE, "explain", "profiling_info", "remove_done_callback"},
    scaler.SchedulerClusterCombo: {
        *(
            "get_address",
            "get_monitor_address",
            "get_object_storage_address",
            "get_name",
            "get_page",
            "failure",
            "shutdown",
        )
    },
    scaler.Serializer: {"serialize", "deserialize"},
    ObjectReference: set(),
    ResultIterator: {"close", "explain"},
    TaskOutput: {"stdout", "stderr", "cut_bytes"},
    ProfilingInfo: {"duration_us", "cpu_time_us", "peak_memory", "duration_s", "cpu_time_s"},
}
"""Every public name of the classes whose objects users have."""
SHOWN[scaler.AsyncClient] = {*SHOWN[scaler.Client], "ask"}
SHOWN[AsyncView] = SHOWN[ClientView]
COMBO = dict.fromkeys(
    ("address", "n_workers", "monitor_address", "name", "web_port", "per_worker_queue_size"), None
) | {
    "logging_level": "WARNING",
    "worker_manager_id": "local",
    "logging_paths": ("/dev/stderr",),
    "per_worker_capabilities": "",
    "limits": None,
    "max_bytes_per_client": None,
}
"""Arguments of the combo that are not settings, or have other defaults."""
MADE_FOR_USERS = (
    AsyncCompleted,
    AsyncResult,
    AsyncResults,
    AsyncView,
    ClientView,
    ObjectReference,
    PoolIterator,
    ResultIterator,
    scaler.ScalerFuture,
)
"""Users do not call these classes."""


def public(owner: object) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_class_exposes_only_its_public_methods() -> None:
    for shown, names in SHOWN.items():
        assert public(shown) == names, shown
        methods = {name: getattr(shown, name) for name in names}
        assert [name for name, method in methods.items() if inspect.isfunction(method) and not method.__doc__] == []


def calls() -> list[Callable[..., Any]]:
    methods = [getattr(shown, name) for shown in SHOWN for name in sorted(SHOWN[shown])]
    made = [shown.__init__ for shown in SHOWN if shown not in MADE_FOR_USERS and "__init__" in vars(shown)]  # type: ignore[misc]
    return [method for method in methods if inspect.isfunction(method)] + made


def test_every_argument_has_a_documented_name_and_type() -> None:
    for call in calls():
        _, *parameters = inspect.signature(call).parameters.values()
        hints = typing.get_type_hints(call)
        assert [parameter.name for parameter in parameters if parameter.name not in hints] == [], call.__qualname__
        assert "return" in hints, call.__qualname__
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                is_named = typing.get_origin(hints[parameter.name]) is typing.Unpack
                is_passed_on = call.__qualname__.startswith(
                    (
                        "AsyncCalls.",
                        "AsyncClient.",
                        "AsyncGraphCalls.",
                        "AsyncMapCalls.",
                        "AsyncStreamCalls.",
                        "ClientView.",
                    )
                )  # to the method of Client
                assert is_named or is_passed_on or call.__name__ in {"submit", "cache", "run", "table"}, (
                    f"{call.__qualname__}: only the keywords of the user's own function have any name"
                )


def parameters_of(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(call, eval_str=True).parameters)


def test_executor_accepts_the_parameters_of_its_client() -> None:
    executor, client = parameters_of(scaler.ScalerExecutor), parameters_of(scaler.Client)
    assert executor.keys() == {"client", "max_workers", "task_options", "options", *client}
    for name, parameter in client.items():
        assert (executor[name].annotation, executor[name].default) == (parameter.annotation, parameter.default)


def test_coroutine_accepts_the_parameters_of_the_client_method() -> None:
    methods = [name for name in SHOWN[scaler.Client] if inspect.isfunction(getattr(scaler.Client, name))]
    for name in methods:
        ours = [*inspect.signature(getattr(scaler.AsyncClient, name)).parameters.values()]
        theirs = [*inspect.signature(getattr(scaler.Client, name)).parameters.values()]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours):  # which it passes on
            assert [*map(str, ours)] == [*map(str, theirs)], name


def test_combo_accepts_its_models_settings_with_types_and_defaults() -> None:
    types = {**typing.get_type_hints(ClusterConfig), **typing.get_type_hints(scheduler_model())}
    settings = {**describe(ClusterConfig), **describe(scheduler_model())}
    for name, parameter in parameters_of(scaler.SchedulerClusterCombo).items():
        if name in COMBO:
            assert parameter.default == COMBO[name]
        else:
            assert (parameter.annotation, parameter.default) == (types[name], settings[name].default)
