"""AWS Batch on loopback: jobs, arrays, queues, compute environments, and job definitions."""

from __future__ import annotations

from scaler.testing.aws.batch.core import BatchCore
from scaler.testing.aws.batch.running import KillContainer, StartContainer, TerminateContainer, Times
from scaler.testing.aws.batch.shell import EmulatedBatch

__all__ = ["BatchCore", "EmulatedBatch", "KillContainer", "StartContainer", "TerminateContainer", "Times"]
