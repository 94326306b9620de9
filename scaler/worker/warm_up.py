"""The operator's preload hook: what is called in a process before its first task."""

from __future__ import annotations

import importlib

from scaler.config.preload import parse_preload


def run_preload(text: str) -> None:
    """Import the module and call the function that the text names. Raises UsageError, and whatever these raise."""
    call = parse_preload(text)
    function = getattr(importlib.import_module(call.module), call.function)
    function(*call.args, **call.kwargs)
