"""Runs traced tasks inside a span, in processors. Task exceptions pass through this module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from scaler.errors import UsageError
from scaler.extensions.telemetry import load
from scaler.extensions.telemetry.context import load_context, place_of
from scaler.worker.frames import Note
from scaler.worker.processor.calling import finish
from scaler.worker.processor.context import ProcessorContext
from scaler.worker.processor.functions import Loaded, LoadedSpec

_log = logging.getLogger(__name__)


def trace_tasks(context: ProcessorContext, _send: Callable[[Note], None]) -> None:
    tracing = TaskTracing(context)
    context.wrappers.append(tracing.wrap)
    context.on_client.append(tracing.observe)
    context.on_end.append(tracing.end)


class TaskTracing:
    """Traces the tasks of one processor. Imports libraries for the first traced task, after the fork."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._sending: Any = None
        """The module that makes spans, once loaded; False if it cannot be loaded."""
        self._spans: Any = None

    def wrap(self, spec: LoadedSpec, loaded: Loaded) -> Loaded:
        if place_of(load_context(spec.context), b"") is None:
            return loaded
        if self._sending is None:
            try:
                self._sending = load("sending", "tracing of tasks")
            except UsageError as error:
                self._sending = False
                _log.warning("tasks run without spans: %s", error)
        return TracedFunction(self, spec, loaded) if self._sending else loaded

    def run(self, name: str, text: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        task = self._context.task_id
        self._spans = self._sending.present_spans(self._spans)  # after the task's modules, which may set a provider
        return self._sending.traced(self._spans, name, text, task, lambda: finish(function(*args, **kwargs)))

    def observe(self, futures: Any) -> None:
        """Make clients inside traced tasks trace their tasks."""
        if self._spans is not None and futures.observer is None:
            futures.observer = load("client", "tracing of tasks").CallTracer(futures.ids.owner, 0.0)

    def end(self) -> None:
        if self._spans is not None:
            self._spans.end()


class TracedFunction:
    def __init__(self, tracing: TaskTracing, spec: LoadedSpec, loaded: Loaded) -> None:
        self._run = partial(tracing.run, spec.name, spec.context)
        self._loaded = loaded

    def get(self) -> Callable[..., Any]:
        return partial(self._run, self._loaded.get())
