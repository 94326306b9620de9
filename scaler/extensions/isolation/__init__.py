"""Isolation of tasks in one processor: each task finds the process as it was before the previous task."""

from scaler.plugins import Extension

EXTENSION = Extension("isolation", processor="scaler.extensions.isolation.restoring:isolate")
