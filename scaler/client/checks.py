"""Checks of numbers and names that users give, with texts that say what to change."""

from __future__ import annotations

from scaler.errors import UsageError

MAX_SECONDS = 1e9
"""More would be beyond what some clocks of the system can count."""


def check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise UsageError unless the value is an integer from `least` on, up to `most` when that is given."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {value!r}, and must be an integer {limits}")


def check_timeout(value: object) -> None:
    """Raise UsageError unless the value is a client's timeout_seconds: a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise UsageError(f"timeout_seconds is {value!r}, and must be a number above 0, up to {MAX_SECONDS:g}")


def check_name(value: object) -> None:
    """Raise UsageError unless the value is a client's name: text that can be sent."""
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise UsageError(f"name is {value!r}, and must be text, without half characters (surrogates)")
