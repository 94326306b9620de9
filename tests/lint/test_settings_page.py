"""The page, the help, and user files name exactly the existing keys."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler.cli import run_command
from scaler.config.commands import launcher_config
from scaler.config.load import SECTIONS, read_file
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, scheduler_model
from scaler.config.setting import SettingsModel, describe, documentation, flag_of
from scaler.config.worker_managers import ClusterConfig, settings_model
from scaler.extensions.http.settings import HttpConfig, Schedule
from scaler.plugins import WORKER_MANAGERS
from scaler.policy.load import load_policy

ROOT = Path(__file__).parents[2]
MANAGER_MODELS = {kind: settings_model(kind) for kind in WORKER_MANAGERS.built_in}
SECTION_MODELS: dict[str, type[SettingsModel]] = {
    "object_storage_server": ObjectStorageServerConfig,
    "scheduler": scheduler_model(),
    "cluster": ClusterConfig,
    "webui": WebUiConfig,
    "top": TopConfig,
    "http": HttpConfig,
    "schedule": Schedule,
}
COMMANDS: dict[str, type[SettingsModel]] = {
    "scaler_object_storage_server": ObjectStorageServerConfig,
    "scaler_scheduler": scheduler_model(),
    "scaler_cluster": ClusterConfig,
    "scaler_ui": WebUiConfig,
    "scaler_top": TopConfig,
    "scaler http": HttpConfig,
    **{f"scaler_worker_manager {kind}": model for kind, model in MANAGER_MODELS.items()},
    **{f"scaler_worker_manager {kind} setup": MANAGER_MODELS[kind] for kind in ("aws_raw_ecs", "aws_ec2", "aws_hpc")},
}
OF_ALL_COMMANDS = {"--config", "--help", "--version"}
OF_SOME_COMMANDS = {
    *("--once", "--json", "--seconds", "--dry-run"),
    *("--of", "--pdb"),  # of scaler profile and scaler replay
    *("--since", "--until"),  # of scaler history
    *("--limit", "--state", "--worker"),  # of scaler show
    *("--role", "--expires", "--output", "--directory", "--weight", "--max-slots", "--group"),  # of scaler keys
}
"""They state a command's action, and are not settings."""
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "config").glob("*.toml"), ROOT / "README.md"])
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_TITLE = re.compile(r"\[+(\w+)\]+")
_KEY = re.compile(r"(?:# )?([a-z][a-z0-9_]*) = (.*)")


def keys_of(model: type[SettingsModel]) -> set[str]:
    """Return the keys of a model by all their names."""
    return {
        name
        for item in describe(model).values()
        for name in (item.name, *(alias.name for alias in item.setting.aliases))
    }


ALL_KEYS = set().union(*map(keys_of, COMMANDS.values()))


def test_settings_page_matches_the_models() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    made = runpy.run_path(str(ROOT / "docs/site/settings.py"))
    assert page == made["settings_page"](), "run: python docs/site/settings.py > docs/settings.md"


def test_every_setting_is_documented_with_a_readable_default_and_a_flag() -> None:
    for model in (*SECTION_MODELS.values(), *MANAGER_MODELS.values()):
        items = describe(model).values()
        assert set(documentation(model)) == set(describe(model))
        assert not [item.name for item in items if re.fullmatch(r"[\d.]+e[+-]\d+", item.default_text)]
        assert not [item.name for item in items if bool(item.default_text) == item.required]
        short = [flag for item in items for flag in item.setting.short_flags.split()]
        assert len(short) == len(set(short))


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_every_file_in_config_starts_with_its_policy(path: Path) -> None:
    config = launcher_config(read_file(str(path)), {})
    assert config.worker_managers
    assert load_policy(config.scheduler.policy_engine_type, config.scheduler.policy_content)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_key_and_no_other(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # flags are not split across two lines
    name, *words = command.split()
    with pytest.raises(SystemExit, match="0"):
        run_command(name, [*words, "-h"])
    named = set(_FLAG.findall(capsys.readouterr().out))
    assert named - OF_ALL_COMMANDS - OF_SOME_COMMANDS == {flag_of(key) for key in keys_of(COMMANDS[command]) - {"type"}}


def written_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield each key of a TOML file with its section or type, including commented-out keys."""
    section = ""
    for line in text.splitlines():
        if title := _TITLE.match(line):
            section = title[1]
        elif found := _KEY.match(line):
            if found[1] == "type":
                section = found[2].strip('"')
            yield section, found[1]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_commented_out_keys_are_keys_too(path: Path) -> None:
    models = {**SECTION_MODELS, **MANAGER_MODELS}
    written = list(written_keys(path.read_text()))
    assert written
    assert [(section, key) for section, key in written if key not in keys_of(models[section])] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_existing_flags_and_variables(path: Path) -> None:
    text = path.read_text()
    known = {*map(flag_of, ALL_KEYS), *OF_ALL_COMMANDS, *OF_SOME_COMMANDS}
    # Lines that show an error message contain the mistake.
    lines = [line for line in text.splitlines() if re.search(r"\bscaler[_ ]", line) and "did you mean" not in line]
    shown = {flag for line in lines for flag in _FLAG.findall(line)}
    mistakes = {"--policy-engin-type"} if path.name == "errors.md" else set()
    assert shown - known == mistakes
    variables = set(re.findall(rf"SCALER_(?:{'|'.join(SECTIONS).upper()})_([A-Z0-9_]+)", text))
    assert {variable.lower() for variable in variables} <= ALL_KEYS


@pytest.mark.parametrize("kind", sorted(MANAGER_MODELS.keys() - {"baremetal_native"}))
def test_manager_page_names_existing_keys(kind: str) -> None:
    own = {key for key in MANAGER_MODELS[kind].__annotations__ if "_" in key}
    beginnings = {key.partition("_")[0] for key in own}
    named = set(re.findall(r"`([a-z0-9]+_[a-z0-9_]+)`", (ROOT / f"docs/{kind}.md").read_text())) - {kind}
    assert named & own
    assert {key for key in named if key.partition("_")[0] in beginnings} <= ALL_KEYS
