"""Whether a function takes a call's arguments: asked before the call is sent, so that a mistake shows at once. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from scaler.client.options import NAMES
from scaler.serialization import name_of


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError when this call would; not for a function whose parameters are unknown or may differ."""
    try:
        if hasattr(function, "__signature__") or (isinstance(function, type) and type(function) is not type):
            return
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 (a builtin has none, and an object of the user may raise anything)
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = next((name for name in kwargs if name in NAMES and name not in signature.parameters), "")
        hint = f"; {given} is an option of tasks: client.options({given}=...).submit(...)" if given else ""
        raise TypeError(f"{name_of(function)}() does not take these arguments: {error}{hint}") from None
