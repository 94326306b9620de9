"""`scaler keys`: creates a cluster's keys, and adds and revokes the keys of peers. Prints no secrets."""

from __future__ import annotations

import os
import re
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Any

from scaler.config.flags import parse_flags, verb_parser
from scaler.errors import UsageError
from scaler.grammar import counted
from scaler.paths import local_path
from scaler.processes import absolute
from scaler.security import CREDENTIALS_VARIABLE
from scaler.security.directory import KeysDirectory, default_directory, require_free
from scaler.security.documents import (
    MAX_NAME_CHARACTERS,
    NAME_RULE,
    PEER_ROLES,
    BrokenEntry,
    PeerEntry,
    complaint,
    is_name,
    lines,
    shown,
)
from scaler.security.keys import Share
from scaler.security.private_files import write_private
from scaler.texts import aligned

STDOUT = "-"
KEY_VERBS: Mapping[str, str] = {
    "init": "Create the keys of a cluster in a private directory for its servers.",
    "add": "Add a key and write the credential file for a user or machine.",
    "share": "Change the share of slots for a key or a group of keys. Takes effect within two seconds.",
    "revoke": "Revoke a key. Its connections end within two seconds.",
    "list": "List all keys.",
    "show": "Show the keys with this name. Prints no secrets.",
}
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def keys(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run `scaler keys`, and return the exit code. Raises UsageError and ConfigError."""
    verb, parser = verb_parser(program, KEY_VERBS, arguments, "Create, list, and revoke the keys of a cluster.")
    text = f"the keys directory [default: {CREDENTIALS_VARIABLE}, or else ~/.config/scaler/keys]"
    if verb == "init":
        parser.add_argument("directory", metavar="DIRECTORY", nargs="?", default=SUPPRESS, help=text)
        text = "a name for the cluster, shown in its credentials [default: this host's name]"
        parser.add_argument("--cluster", metavar="NAME", help=text)
    else:
        parser.add_argument("-d", "--directory", metavar="DIRECTORY", default=SUPPRESS, help=text)
    if verb not in ("init", "list"):
        parser.add_argument("name", metavar="NAME", help="name of a user or machine")
    if verb == "add":
        parser.add_argument("--role", required=True, metavar="|".join(PEER_ROLES), help="the role of the key")
        parser.add_argument("--expires", metavar="TIME", help="lifetime, such as 12h, 30d, or 52w [default: unlimited]")
        text = "credential file to create [default: NAME.credentials]; - writes to stdout"
        parser.add_argument("-o", "--output", metavar="FILE", default="", help=text)
    if verb in ("add", "share"):
        text = "share of slots relative to other keys, or to the keys in its group [default: 1]"
        parser.add_argument("--weight", metavar="NUMBER", help=text)
        parser.add_argument("--max-slots", metavar="COUNT", help="maximum slots to use at once; 0: no limit")
        parser.add_argument("--group", metavar="NAME", help="group of keys that share slots like a single key")
    flags: dict[str, Any] = parse_flags(parser, arguments[1:])
    share, name = _share_of({each: flags.pop(each, None) for each in Share._fields}), flags.get("name", "")
    path = local_path(flags["directory"]) if "directory" in flags else default_directory(environment)
    if verb == "init":
        return _init(path, flags["cluster"])
    directory = KeysDirectory.open(path)
    if verb == "add":
        expires = None if flags["expires"] is None else _time_after(flags["expires"])
        return _add(directory, name, flags["role"], expires, share, flags["output"])
    if verb == "share":
        if not share:
            raise UsageError("give a --weight, --max-slots, or --group")
        entry = directory.share(name, share)
        _say(f"{entry.name}: {_share_text(entry.share)}")
        return 0
    if verb == "revoke":
        directory.revoke(name)
        _say(f"revoked {name}: its connections end within 2 seconds")
        return 0
    return _show(directory, name)


def _share_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    share: dict[str, Any] = {}
    for name, kind in (("weight", float), ("max_slots", int)):
        if (text := flags[name]) is not None:
            with suppress(ValueError):
                text = kind(text)
            share[name] = None if name == "max_slots" and text == 0 else text
            if share[name] is not None and (rule := complaint(name, text)):
                raise UsageError(f"--{name.replace('_', '-')} {flags[name]}: must be {rule}")
    if (group := flags["group"]) is not None:
        if group and not is_name(group):
            raise UsageError(f"--group {group}: must be {NAME_RULE}")
        share["group"] = group or None
    return share


def _init(path: Path, cluster: str | None) -> int:
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", os.uname().nodename.partition(".")[0]).strip("-_")[:MAX_NAME_CHARACTERS]
    directory = KeysDirectory.create(path, cluster or host or "cluster")
    where = quote(str(absolute(directory.path)))
    option = "" if directory.path == default_directory(os.environ) else f" --directory {where}"
    _say(
        f"created the keys of cluster {directory.cluster!r} in {where}, readable only by this user. Next:\n\n"
        f"    scaler keys add NAME --role client{option}     # a file for each user\n"
        f"    scaler keys add NAME --role manager{option}    # and for each machine with workers\n"
        f"    scaler_scheduler tcp://ADDRESS:8516 --credentials {where}"
    )
    return 0


def _add(
    directory: KeysDirectory, name: str, role: str, expires: datetime | None, share: Mapping[str, Any], output: str
) -> int:
    path = local_path(output or f"{name}.credentials")
    to_file = output != STDOUT
    require_free(name, directory.listed())
    if to_file and path.exists():
        raise UsageError(f"{path} already exists: choose another file with --output")
    given = Share(**{name: value for name, value in share.items() if value is not None})
    credential = directory.add(name, role, expires, given)
    if not to_file:
        sys.stdout.write(credential.to_text())
        sys.stdout.flush()
        return 0
    try:
        write_private(path, credential.to_text())
    except (UsageError, FileExistsError) as error:
        directory.revoke(name)
        raise UsageError(f"{error}; key {name!r} was revoked") from None
    _say(
        f"wrote {path}, the only copy of this key. Copy it over a private channel to the machine that uses it, and "
        f'name it there: --credentials FILE, {CREDENTIALS_VARIABLE}=FILE or Client(ADDRESS, credentials="FILE")'
    )
    return 0


def _show(directory: KeysDirectory, name: str) -> int:
    listed = directory.listed()
    entries = sorted((each for each in listed if isinstance(each, PeerEntry)), key=lambda entry: entry.name)
    problems = [each.error for each in listed if isinstance(each, BrokenEntry)]
    if name:
        if not (entries := [entry for entry in entries if entry.name == name]):
            raise UsageError(f"there is no key named {name!r}; `scaler keys list` lists all keys")
        _say("\n".join(f"{lines(asdict(entry))}# {_state(entry)}" for entry in entries))
        servers = {"scheduler": directory.scheduler.public, "object_storage": directory.object_storage.public}
        _say(f"\n[servers]\n{lines(servers)}".rstrip())
        return 0
    if not entries:
        _say("no keys yet: scaler keys add NAME --role ROLE")
    rows = [("name", "role", "share", "added", "expires", "state")]
    for entry in entries:
        expires = shown(entry.expires) if entry.expires else "never"
        share = _share_text(entry.share)
        rows.append((entry.name, entry.role, share, shown(entry.added), expires, _state(entry)))
    if entries:
        _say(aligned(rows))
    sys.stderr.writelines(f"scaler keys list: this entry grants no access: {problem}\n" for problem in problems)
    return 1 if problems else 0


def _share_text(share: Share) -> str:
    limit = f", at most {counted(share.max_slots, 'slot')}" if share.max_slots else ""
    return f"weight {share.weight:g}{limit}{f', group {share.group}' if share.group else ''}"


def _state(entry: PeerEntry) -> str:
    return entry.problem(datetime.now(UTC)).removeprefix("was ") or "admitted"


def _time_after(text: str) -> datetime:
    match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text)
    if match is None:
        raise UsageError(f"--expires {text}: give hours, days, or weeks, such as 12h, 30d, or 52w")
    return datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
