"""AWS Batch on loopback: jobs, arrays, queues, compute environments and job definitions."""

from __future__ import annotations

from scaler.testing.aws.batch.core import BatchCore
from scaler.testing.aws.batch.shell import EmulatedBatch
from scaler.testing.aws.batch.timeline import KillContainer, StartContainer, TerminateContainer, Times

__all__ = ["BatchCore", "EmulatedBatch", "KillContainer", "StartContainer", "TerminateContainer", "Times"]
