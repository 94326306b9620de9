"""Scaling: decides how many units each worker manager should have.

core -> elastic.py: demand.py, units.py -> AskPolicy -> policy.py -> PolicyAnswered -> Desired, Drain
                  -> late_workers.py: limits for workers with late task starts
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "scaling",
    scheduler="scaler.extensions.scaling.elastic:ScalingPart",
    scaling="scaler.extensions.scaling.elastic:Elastic",
    policy="scaler.extensions.scaling.policy:PolicyCalls",
)
