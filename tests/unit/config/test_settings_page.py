"""The page and the files that users read are true."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler.config.commands import launcher_config
from scaler.config.files import read_file
from scaler.config.models import (
    BaremetalNativeConfig,
    ClusterConfig,
    ObjectStorageServerConfig,
    SchedulerConfig,
    TopConfig,
    WebUiConfig,
)
from scaler.config.reference import settings_page
from scaler.config.setting import SettingsModel, describe, documentation

ROOT = Path(__file__).parents[3]
MODELS: tuple[type[SettingsModel], ...] = (
    BaremetalNativeConfig,
    ClusterConfig,
    ObjectStorageServerConfig,
    SchedulerConfig,
    TopConfig,
    WebUiConfig,
)


def test_the_page_of_settings_is_the_one_that_the_models_make() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    assert page == settings_page(), "run: python -m scaler.config.reference > docs/settings.md"


@pytest.mark.parametrize("model", MODELS)
def test_every_setting_is_documented_and_no_two_share_a_flag(model: type[SettingsModel]) -> None:
    assert set(documentation(model)) == set(model.model_fields)
    short = [flag for item in describe(model).values() for flag in item.setting.short_flags]
    assert len(short) == len(set(short))


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_every_file_in_config_can_be_started(path: Path) -> None:
    assert launcher_config(read_file(str(path)), {}).worker_managers
