"""Health: bad workers and slow connections."""

from __future__ import annotations

from scaler.plugins import Extension

EXTENSION = Extension(
    "health", scheduler="scaler.extensions.health.core:WorkerHealth", page="scaler.extensions.health:network"
)
