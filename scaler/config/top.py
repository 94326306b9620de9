"""The terminal's view of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from scaler.config.kinds import Seconds, ServerAddress
from scaler.config.setting import Alias, Setting, SettingsModel

TopForm = Literal["screen", "once", "json"]


class TopConfig(SettingsModel):
    """Terminal monitor."""

    monitor_address: Annotated[ServerAddress, Setting(positional=True, metavar="ADDRESS")]
    """Where the scheduler serves its monitors: two ports above its own address unless it was told otherwise."""
    timeout_seconds: Annotated[Seconds, Setting("-t", aliases=(Alias("timeout"),), metavar="SECONDS")] = 5.0
    """How long it waits for a scheduler at its start, and for the answer to a question about a task."""


@dataclass(frozen=True, slots=True)
class TopRequest:
    """What `scaler_top` is told: what to watch, and whether to show it until it is left or to print it once."""

    config: TopConfig
    form: TopForm
