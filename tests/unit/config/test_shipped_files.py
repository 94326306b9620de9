"""Every file in config/ is one that `scaler FILE` accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.config.commands import launcher_config
from scaler.config.files import read_file
from scaler.policy.load import load_policy

FILES = sorted((Path(__file__).parents[3] / "config").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_is_accepted_with_its_policy(path: Path) -> None:
    scheduler = launcher_config(read_file(str(path)), {}).scheduler
    assert load_policy(scheduler.policy_engine_type, scheduler.policy_content)
