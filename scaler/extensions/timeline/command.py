"""`scaler trace`: writes the timeline into a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from scaler.extensions.timeline.trace import trace
from scaler.monitor.commands import write_made
from scaler.monitor.connection import MonitorConnection

VIEWERS = "https://ui.perfetto.dev or chrome://tracing"
Environment = Mapping[str, str]


def trace_file(program: str, arguments: Sequence[str], environment: Environment) -> int:
    purpose = "Write the timeline of a cluster as a trace for Perfetto and Chrome; FILE - is stdout."

    async def made(connection: MonitorConnection) -> tuple[str, int, str]:
        document = trace(connection.model)
        return json.dumps(document), sum(event["ph"] == "X" for event in document["traceEvents"]), VIEWERS

    return write_made("trace", purpose, made, program, arguments, environment)
