"""Resources that tasks occupy (memory, GPUs, CPUs, and cluster limits), and their reservation for large tasks.

core placement -> core.py: reservations -> stocks.py: amounts per worker
                         cluster_limits.py: limits -> the table `limits`
processors' memory -> memory.py -> limits.py: processors to kill
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, NamedTuple

from scaler.capabilities import amounts, parse_names
from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Check, taken_by
from scaler.monitor.columns import Column
from scaler.plugins import Extension, FoundTable


@dataclass(frozen=True, kw_only=True)
class LimitSettings(SettingsModel):
    """Limits of the cluster."""

    limits: Annotated[
        dict[str, float],
        Check(partial(parse_names, what="limit", form="name=number, such as db=10,licence=4"), of_text=True),
        taken_by(partial(amounts, "limits")),
        Setting(default_text="none", metavar="LIMITS"),
    ] = field(default_factory=dict)
    """Amounts of resources outside the cluster that tasks may use at once, such as db=10,licence=4. Tasks declare
    the amounts that they use with the task option limits."""


class LimitRow(NamedTuple):
    """A cluster limit and its use."""

    limit: Annotated[str, Column("Limit")] = ""
    used: Annotated[float, Column("Used")] = 0.0
    total: Annotated[float, Column("Total")] = 0.0
    ready: Annotated[int, Column("Ready", "count", help="Tasks that wait for the limit or for a slot")] = 0
    used_by: Annotated[str, Column("Used by", help="Number of tasks by function")] = ""


EXTENSION = Extension(
    "resources",
    settings="scaler.extensions.resources:LimitSettings",
    scheduler="scaler.extensions.resources.core:Counted",
    agent="scaler.extensions.resources.memory:limit_memory",
    found=(
        FoundTable(
            "limits",
            "Limits of the cluster",
            "scaler.extensions.resources:LimitRow",
            most=2_000,
            parameter=("search", "Text to search for in the name."),
            page="clients",
        ),
    ),
)
