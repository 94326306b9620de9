"""A client that reaches the scheduler but not the object storage, as through a single-port tunnel."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler import Client
from scaler.cluster.supervisor import PORTS_OF_A_SCHEDULER
from scaler.errors import UnreachableError
from tests.integration.free_ports import free_addresses
from tests.integration.settings_rig import command


def test_error_names_the_address_and_the_setting_that_changes_it(tmp_path: Path) -> None:
    scheduler, *_, storage = free_addresses(count=PORTS_OF_A_SCHEDULER + 1)
    flags = ["--insecure-no-auth", "True", "--advertised-object-storage-address", storage]
    with command("scaler_scheduler", scheduler, *flags, directory=tmp_path) as running:
        running.addresses()
        with (
            Client(scheduler, timeout_seconds=2.0, insecure_no_auth=True) as client,
            pytest.raises(UnreachableError, match=rf"{storage}.*set a different one in .*advertised_object_storage"),
        ):
            client.send_object(bytes(3_000_000))
