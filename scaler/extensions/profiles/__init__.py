"""Profiles: where functions and long tasks spend their time, and how much memory functions take.

TasksProfiled of an agent -> core.py: merged per function -> Profiled, the answer to ReadProfile
WorkerHeartbeat -> memory.py: memory per function, merged from all workers -> columns of functions
"""

from __future__ import annotations

from scaler.plugins import Extension

EXTENSION = Extension("profiles", scheduler="scaler.extensions.profiles.core:Profiles")
