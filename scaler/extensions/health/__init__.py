"""Health: which workers are bad, and which connections are slow."""

from __future__ import annotations

from scaler.plugins import Extension

EXTENSION = Extension("health", scheduler="scaler.extensions.health.core:WorkerHealth")
