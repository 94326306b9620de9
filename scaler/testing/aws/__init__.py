"""AWS on loopback: ECS, Batch and S3 for real clients, with containers that are processes and faults by script."""

from __future__ import annotations

from scaler.testing.aws.faults import Error, LoseReply, Partial, Slow, Throttle
from scaler.testing.aws.server import AwsEmulator

__all__ = ["AwsEmulator", "Error", "LoseReply", "Partial", "Slow", "Throttle"]
