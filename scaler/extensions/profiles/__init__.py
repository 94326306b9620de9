"""Profiles: where functions and long tasks spend their time, and how much memory functions use.

processor.py: samples -> agent.py: TasksProfiled -> core.py: merged per function -> Profiled, the answer to ReadProfile
agent.py -> usage.py: memory per function -> WorkerHeartbeat -> core.py: merged -> columns of functions
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "profiles",
    questions="scaler.extensions.profiles.client:ProfileCalls",
    agent="scaler.extensions.profiles.agent:start_profiles",
    processor="scaler.extensions.profiles.processor:sample_tasks",
    scheduler="scaler.extensions.profiles.core:Profiles",
)
