"""The timeline of task runs by worker lane, on the page and as a trace for other programs.

reports of the scheduler -> lanes.py -> page/timeline.js
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "timeline", routes="scaler.extensions.timeline.lanes:ROUTES", page="scaler.extensions.timeline:timeline"
)
