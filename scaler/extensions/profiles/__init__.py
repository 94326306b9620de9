"""Profiles: where functions and long tasks spend their time.

TasksProfiled of an agent -> core.py: merged per function -> Profiled, the answer to ReadProfile
"""

from __future__ import annotations

from scaler.plugins import Extension

EXTENSION = Extension("profiles", scheduler="scaler.extensions.profiles.core:Profiles")
