"""Credential files: their content, and rejected files."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zmq

from scaler.errors import ConfigError
from scaler.security.credential import Credential, load_credential
from scaler.security.keys import new_key_pair

MARK = "SECRETsecretSECRETsecretSECRETsecret0000"
PUBLIC = "p" * 40


def credential(role: str = "client") -> Credential:
    return Credential(
        name="alice",
        role=role,
        cluster="lab",
        scheduler_key="s" * 40,
        object_storage_key="o" * 40,
        public=PUBLIC,
        secret=MARK,
        expires=datetime(2030, 1, 31, 12, tzinfo=UTC),
    )


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("role", ["client", "worker", "manager", "monitor", "admin"])
def test_credential_round_trips(role: str, tmp_path: Path) -> None:
    path = written(tmp_path / "alice.credentials", credential(role).to_text())
    assert load_credential(path) == credential(role)


def test_units_have_their_own_worker_credential(tmp_path: Path) -> None:
    manager = replace(credential("manager"), **new_key_pair()._asdict())
    units = manager.for_units()
    assert (units.name, units.role) == ("alice.units", "worker")
    assert manager.for_units() == units, "its keys derive from the manager's keys"
    assert not {units.keys.public, units.keys.secret} & {manager.keys.public, manager.keys.secret}
    assert zmq.curve_public(units.keys.secret.encode()).decode() == units.keys.public
    assert units.keys != replace(manager, **new_key_pair()._asdict()).for_units().keys
    assert load_credential(written(tmp_path / "units", units.to_text())) == units
    with pytest.raises(ConfigError, match="only managers have units"):
        credential("worker").for_units()


def test_refused_credential_error_explains_why_within_clock_error() -> None:
    expires = credential().expires
    assert expires is not None
    assert credential().ending(expires) == "expired on 2030-01-31 12:00 UTC"
    assert credential().ending(expires - timedelta(minutes=30)) == "was revoked, or has expired"
    assert credential().ending(expires - timedelta(hours=2)) == "was revoked"
    assert replace(credential(), expires=None).ending(expires) == "was revoked"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_rejects_an_open_file_and_suggests_chmod(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "my alice.credentials", credential().to_text(), mode)
    with pytest.raises(ConfigError) as caught:
        load_credential(path)
    command = str(caught.value).partition(f"(mode {mode:04o}): ")[2]
    assert os.system(command) == 0
    assert load_credential(path) == credential()


def test_rejects_a_file_of_another_user(tmp_path: Path) -> None:
    path = written(tmp_path / "alice.credentials", credential().to_text())
    if os.geteuid():
        pytest.skip("SKIPPED: only root can give a file to another user")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 12345\)"):
        load_credential(path)


def test_names_missing_files_and_directories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none: No such file"):
        load_credential(tmp_path / "none")
    with pytest.raises(ConfigError, match="is a directory: give a credential file"):
        load_credential(tmp_path)


def test_file_errors_never_show_secrets(tmp_path: Path) -> None:
    text = credential("manager").to_text()
    broken = [
        MARK,
        f"{MARK} = ",
        text.replace('secret = "', 'secret = "x'),
        text.replace("\nsecret", "\nsecrets"),
        text.replace("\nsecret =", f"\n{MARK} ="),
        text.replace("\nsecret", "\nexpire = 1\nsecret"),
        text.replace(f'"{MARK}"', MARK),
        text.replace(f'"{MARK}"', f'["{MARK}"]'),
        text.replace('role = "manager"', f'role = "{MARK}"'),
        text.replace('name = "alice"', f'name = "{MARK}!"'),
        text.replace("2030-01-31T12:00:00Z", f'"{MARK}"'),
        text.replace("2030-01-31T12:00:00Z", "2030-01-31T12:00:00"),
        text + "x" * 70_000,
        "[" * 50_000,
        "",
        text.partition("secret =")[0],
        text + f"{MARK} = 1\n{MARK} = 2",
        '\ufffd"\x00' + text,
    ]
    for number, each in enumerate(broken):
        path = written(tmp_path / f"file{number}", each)
        with pytest.raises(ConfigError) as caught:
            load_credential(path)
        error: BaseException | None = caught.value
        assert path.name in str(error)
        while error is not None:
            assert MARK[:8] not in f"{error} {error!r}", each
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_no_repr_shows_a_secret() -> None:
    for each in (credential("manager"), credential().keys):
        assert MARK not in f"{each} {each!r} {[each]} {vars(type(each)).get('x')}"
        assert PUBLIC in repr(each)
    units = replace(credential("manager"), **new_key_pair()._asdict()).for_units()
    assert units.keys.secret not in repr(units)
