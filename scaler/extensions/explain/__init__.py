"""Explanations: why a task waits or how it ended, why there are no workers, and warnings about tasks that no worker can
run.

Explain, a question -> core.py -> Explained; status of the scheduler -> `Explainer` -> texts
"""

from scaler.plugins import Extension

EXTENSION = Extension("explain", scheduler="scaler.extensions.explain.core:Explanations")
