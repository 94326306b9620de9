"""A scheduler refuses task options whose extension is off, and names the extension."""

from __future__ import annotations

from typing import Any

import pytest

from scaler.protocol.messages import Outcome
from tests.unit.scheduler.driver import Cluster


@pytest.mark.parametrize(
    ("extension", "options"),
    [
        ("near", {"needs": (("near:model", 0.0),)}),
        ("sharing", {"preemptible": 5.0}),
        ("resources", {"needs": (("cpus", 2.0),)}),
        ("gangs", {"needs": (("gang:1/0", 1.0),), "retries": 0}),
    ],
)
@pytest.mark.parametrize("is_off", [True, False])
def test_an_option_of_an_extension_that_is_off_is_refused(
    extension: str, options: dict[str, Any], *, is_off: bool
) -> None:
    class Reduced(Cluster):
        extensions = tuple(each for each in (*Cluster.extensions, "gangs") if each != extension or not is_off)

    cluster = Reduced()
    client, _ = cluster.client(), cluster.worker("a", slots=2)
    (task,) = cluster.submit(client, **options)
    assert (cluster.outcome(client, task) is Outcome.REJECTED) == is_off
    if is_off:
        assert f"need the extension '{extension}'".encode() in cluster.outcomes(client)[task][1]
