"""Logs: task output, and the workers' last warnings and errors.

prints.py: output of tasks -> Printed
agent.py: records -> WorkerLogged -> core.py: the last records -> the table `logs`
Printed, Output from an agent -> core.py: beginning and end per task -> TaskLog, the answer to ReadLog
"""

from scaler.plugins import Extension, FoundTable

EXTENSION = Extension(
    "logs",
    questions="scaler.extensions.logs.client:LogCalls",
    agent="scaler.extensions.logs.agent:send_logs",
    scheduler="scaler.extensions.logs.core:Logs",
    page="scaler.extensions.logs:logs",
    found=(
        FoundTable(
            "logs",
            "Recent records from the workers' own logs, at level WARNING or above",
            "scaler.extensions.logs.rows:LogRow",
            most=1_000,
            parameter=("worker", "A worker's name or id."),
        ),
    ),
)
