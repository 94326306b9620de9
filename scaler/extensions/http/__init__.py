"""Calls, jobs, and schedules over HTTP.

settings.py -> server.py: requests -> keys.py: one client per key -> job.py: on workers
schedules.py: runs in durable sessions -> job.py
command.py: `scaler submit`, `scaler http`
"""

from scaler.plugins import Extension, OwnProcess

EXTENSION = Extension(
    "http",
    process=OwnProcess(
        "http", "scaler.extensions.http.settings:HttpConfig", "scaler.extensions.http.server:run", ("schedule",)
    ),
    requires=("durability", "languages", "streams"),
)
