"""The timeline of task runs by worker lane, on the web page and as a trace for other programs.

scheduler reports -> lanes.py -> page/timeline.js
"""

from scaler.plugins import Extension

EXTENSION = Extension(
    "timeline", routes="scaler.extensions.timeline.lanes:ROUTES", page="scaler.extensions.timeline:timeline"
)
