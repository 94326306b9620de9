"""What a task's description says about a unit. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scaler.protocol.messages import UnitState
from scaler.worker_manager.aws.errors import steady

STOP_REASON = "Stopped by scaler"
"""Tells what we have stopped from what others have."""
MAX_DESCRIBED = 100
_STATES = {
    "PROVISIONING": UnitState.PENDING,
    "PENDING": UnitState.PENDING,
    "ACTIVATING": UnitState.PENDING,
    "RUNNING": UnitState.RUNNING,
    "DEACTIVATING": UnitState.STOPPING,
    "STOPPING": UnitState.STOPPING,
    "DEPROVISIONING": UnitState.STOPPING,
}


def unit_id_of(arn: str) -> str:
    """Return the last part of a task's ARN."""
    return arn.rpartition("/")[2]


def state_of(task: Mapping[str, Any]) -> UnitState:
    """Return the state of a described task; it is STOPPED only when we have stopped it, or its worker ended in order.

    A worker that ECS takes away (a spot interruption, a retired host) is FAILED however it ended.
    """
    status = task.get("lastStatus", "")
    if status != "STOPPED":
        state = _STATES.get(status, UnitState.PENDING)
        is_to_stop = task.get("desiredStatus") == "STOPPED"
        return UnitState.STOPPING if is_to_stop else state
    code = task.get("stopCode")
    if code == "UserInitiated" and str(task.get("stoppedReason", "")).startswith(STOP_REASON):
        return UnitState.STOPPED
    in_order = code == "EssentialContainerExited" and _exit_codes(task) == {0}
    return UnitState.STOPPED if in_order else UnitState.FAILED


def reason_of(task: Mapping[str, Any]) -> str:
    """Return why a task stopped or stops, for people; empty when nobody has said."""
    code, reason = task.get("stopCode", ""), steady(task.get("stoppedReason", "")).rstrip(".")
    parts = [": ".join(part for part in (code, reason) if part)]
    for container in task.get("containers", []):
        exit_code = container.get("exitCode")
        if exit_code is not None:
            parts.append(f"exit code {exit_code}{_signal_of(exit_code)}")
        if container.get("reason") and steady(container["reason"]) not in reason:
            parts.append(steady(container["reason"]))
    return "; ".join(part for part in parts if part)


def age_seconds(task: Mapping[str, Any], now: datetime) -> float:
    """Return how long a task has existed, or had when it stopped. Clocks may differ; it is never below 0."""
    created, stopped = task.get("createdAt"), task.get("stoppedAt")
    if created is None:
        return 0.0
    age: float = ((stopped or now) - created).total_seconds()
    return max(0.0, age)


def _exit_codes(task: Mapping[str, Any]) -> set[int | None]:
    return {container.get("exitCode") for container in task.get("containers", [])}


def _signal_of(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""
