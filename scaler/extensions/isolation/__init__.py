"""Isolation of tasks in one processor: undoes the changes of each task to its process."""

from scaler.plugins import Extension

EXTENSION = Extension("isolation", processor="scaler.extensions.isolation.restoring:isolate")
