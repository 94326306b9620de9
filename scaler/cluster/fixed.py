"""`scaler_cluster`: a fixed set of workers on this machine."""

from __future__ import annotations

from scaler.config.worker_managers import ClusterConfig
from scaler.worker_manager import runner


def run(config: ClusterConfig) -> int:
    """Keep the workers running until told to stop, and return the exit code."""
    return runner.run(config.as_worker_manager())
