"""Uses a cluster in each way that its extensions permit, and prints its state as monitors see it."""

from __future__ import annotations

import sys

from scaler import Client, SchedulerClusterCombo
from scaler.cli import run_command
from scaler.errors import UsageError
from scaler.plugins import EXTENSIONS


def double(number: int) -> int:
    return 2 * number


def add(left: int, right: int) -> int:
    return left + right


def use_maps(client: Client) -> None:
    assert client.map(double, range(1000)) == [2 * number for number in range(1000)]


def use_graphs(client: Client) -> None:
    assert client.get({"a": 1, "b": (add, "a", "a"), "c": (add, "b", "a")}, ["c"]) == {"c": 3}


USES = {"maps": use_maps, "graphs": use_graphs}


def main(policy: str = "simple") -> None:
    with SchedulerClusterCombo(n_workers=1, policy_engine_type=policy) as cluster:
        with Client(address=cluster.get_address()) as client:
            assert client.submit(double, 3).result() == 6
            for extension, use in USES.items():
                try:
                    use(client)
                    assert extension in EXTENSIONS.built_in
                except UsageError as error:
                    assert extension not in EXTENSIONS.built_in
                    assert f"needs the extension {extension!r}" in str(error)  # noqa: PT017
        assert run_command("scaler_top", ["--json", cluster.get_monitor_address()]) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
