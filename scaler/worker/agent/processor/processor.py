"""Lets third-party libraries detect, under this established name, whether they run inside a task."""

from __future__ import annotations

from scaler.worker.processor.context import ProcessorContext, current


class Processor:
    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    @staticmethod
    def get_current_processor() -> Processor | None:
        """Return the current processor inside a task, and None elsewhere."""
        context = current()
        return None if context is None else Processor(context)

    def current_task_id(self) -> bytes:
        return self._context.task_id
