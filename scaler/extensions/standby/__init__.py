"""A standby scheduler follows the first scheduler's journal and can take its place.

first.py: records -> core.py: FollowedStream -> the network -> standby.py: core.Follower, its own journal
command.py: scaler promote -> standby.py -> main.py: an ordinary recovery from that journal
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from scaler.config.setting import Setting, SettingsModel
from scaler.config.values import Seconds, ServerAddresses
from scaler.plugins import Extension


@dataclass(frozen=True, kw_only=True)
class StandbySettings(SettingsModel):
    """Standby scheduler."""

    standby_of: Annotated[ServerAddresses, Setting(default_text="none: this is the scheduler", metavar="ADDRESS")] = ""
    """Address of the scheduler to follow, as a standby, until promoted. Needs state_directory, and the other
    scheduler's object_storage_address."""
    standby_timeout_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 3.0
    """Maximum time that acknowledgements wait for a standby. After that, the scheduler continues without the standby,
    which then lacks acknowledged tasks. Must be equal on both schedulers."""
    standby_lease: Annotated[str, Setting(default_text="none: `scaler promote` only", metavar="URL")] = ""
    """Lease object on S3, s3://bucket/key. Its holder is the scheduler. A standby takes over when the scheduler stops
    renewing the lease. Must be equal on both schedulers."""
    standby_lease_seconds: Annotated[Seconds, Setting(metavar="SECONDS")] = 15.0
    """Time without renewal after which a standby takes over. The scheduler stops earlier."""

    def check(self) -> None:
        super().check()
        given = vars(self)
        if (self.standby_of or self.standby_lease) and not given.get("state_directory"):
            raise ValueError("a standby scheduler needs a state_directory for its copy of the journal: set one")
        if self.standby_of and not given.get("object_storage_address"):
            raise ValueError(
                "a standby scheduler needs an object storage that outlives the first scheduler: run "
                "scaler_object_storage_server elsewhere, and give both schedulers its object_storage_address"
            )


EXTENSION = Extension(
    "standby",
    settings="scaler.extensions.standby:StandbySettings",
    scheduler="scaler.extensions.standby.core:StandbyPart",
    keeper="scaler.extensions.standby.first:FollowedSteps",
    main="scaler.extensions.standby.main:main",
    requires=("durability",),
)
