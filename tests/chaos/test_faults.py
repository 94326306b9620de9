"""The fault script."""

from __future__ import annotations

from tests.chaos.faults import KINDS, kinds_without, script


def test_same_seed_gives_the_same_faults() -> None:
    assert list(script(7, 300.0, KINDS)) == list(script(7, 300.0, KINDS))
    assert list(script(7, 300.0, KINDS)) != list(script(8, 300.0, KINDS))


def test_long_script_covers_every_kind_and_target_in_time() -> None:
    faults = list(script(7, 3600.0, KINDS))
    assert {(fault.kind, fault.target) for fault in faults} == {
        (kind.name, target) for kind in KINDS for target in kind.targets
    }
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert faults[-1].at < 3600.0


def test_kinds_and_targets_can_be_omitted() -> None:
    kinds = kinds_without(["kill scheduler", "page", "full disk"])
    assert not any(kind.name == "full disk" or "page" in kind.targets for kind in kinds)
    assert not any(kind.name == "kill" and "scheduler" in kind.targets for kind in kinds)
    assert any(kind.name == "stop" and "scheduler" in kind.targets for kind in kinds)
