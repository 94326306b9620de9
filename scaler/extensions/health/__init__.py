"""Health: bad workers and slow connections."""

from scaler.plugins import Extension

EXTENSION = Extension(
    "health",
    agent="scaler.extensions.health.machine:measure_machine",
    scheduler="scaler.extensions.health.core:WorkerHealth",
    page="scaler.extensions.health:network",
)
