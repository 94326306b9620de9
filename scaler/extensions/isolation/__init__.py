"""Isolates the tasks of one processor: undoes each task's changes to the process."""

from scaler.plugins import Extension

EXTENSION = Extension("isolation", processor="scaler.extensions.isolation.restoring:isolate")
