"""Work on AWS Batch, in one of two ways.

Mode offload: a local agent (`scaler.worker_manager.offload`) whose tasks are Batch jobs; tasks that arrive together are
one array job. Calls and results travel through the job's own request and S3, so nothing connects inward.

Mode worker: the units are jobs, or children of array jobs, that run workers, which connect to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler.config.cloud import AwsHpcConfig  # importing it takes a tenth of a second
    from scaler.config.commands import Verb
    from scaler.worker_manager.backend import Backend

# A job imports this package too, to run one task: what only managers need is imported where they need it.


def make_backend(config: AwsHpcConfig) -> Backend:
    """Return the backend of the configuration's mode. Raises UsageError and, in mode worker, AwsError."""
    if config.mode == "worker":
        from scaler.worker_manager.aws_hpc.workers import BatchBackend  # noqa: PLC0415

        return BatchBackend(config)
    from scaler.worker_manager.aws_hpc.executor import offload_backend  # noqa: PLC0415

    return offload_backend(config)


def provision(config: AwsHpcConfig, verb: Verb, dry_run: bool, say: Callable[[str], None]) -> int:
    """Make, list or remove what the manager needs; return the exit code. Raises AwsError, UsageError."""
    from scaler.worker_manager.aws_hpc.setup import provision as run  # noqa: PLC0415

    return run(config, verb, dry_run, say)


__all__ = ["make_backend", "provision"]
