"""A Scaler extension that lists functions with slow tasks. docs/extensions.md explains each part."""

from scaler.plugins import Extension, FoundTable

EXTENSION = Extension(
    "slow_tasks",
    settings="scaler_slow_tasks.core:SlowTaskSettings",
    scheduler="scaler_slow_tasks.core:SlowTasks",
    found=(
        FoundTable(
            "slow_tasks",
            "Functions with slow tasks",
            "scaler_slow_tasks.rows:SlowTaskRow",
            most=200,
            parameter=("function", "A part of a function's name."),
            page="clients",
        ),
    ),
)
