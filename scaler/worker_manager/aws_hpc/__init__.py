"""Work on AWS Batch, in one of two ways.

Mode offload: a local agent (`scaler.worker_manager.offload`) whose tasks are Batch jobs; tasks that arrive together are
one array job. Calls and results travel through the job's own request and S3, so nothing connects inward.

Mode worker: the units are jobs, or children of array jobs, that run workers, which connect to the scheduler.
"""

from __future__ import annotations

from scaler.plugins import WorkerManagerType

TYPE = WorkerManagerType(
    backend="scaler.worker_manager.aws_hpc.backend:make_backend",
    settings="scaler.worker_manager.aws_hpc.settings:AwsHpcConfig",
    provision="scaler.worker_manager.aws_hpc.setup:provision",
)
