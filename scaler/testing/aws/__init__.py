"""AWS on loopback for real clients. Containers are local processes, and faults follow a script."""

from __future__ import annotations

from scaler.testing.aws.faults import Error, LoseReply, Partial, Slow, Throttle
from scaler.testing.aws.server import AwsEmulator

__all__ = ["AwsEmulator", "Error", "LoseReply", "Partial", "Slow", "Throttle"]
