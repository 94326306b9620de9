"""AWS Batch on loopback: jobs, arrays, queues, compute environments and job definitions."""

from __future__ import annotations

from scaler.testing.aws.batch.commands import Kill, Start, Terminate, Times
from scaler.testing.aws.batch.core import BatchCore
from scaler.testing.aws.batch.shell import Batch

__all__ = ["Batch", "BatchCore", "Kill", "Start", "Terminate", "Times"]
