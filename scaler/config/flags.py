"""Command lines, derived from the models."""

from __future__ import annotations

import argparse
import textwrap
import typing
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from scaler._version import __version__
from scaler.config.compatibility import RETIRED, without_retired
from scaler.config.load import title_of, variable_of
from scaler.config.setting import Described, SettingsModel, describe, documentation, flag_of, group_title
from scaler.errors import UsageError, nearest

_POSITIONAL = "positional:"
_HELP_COLUMN = 34


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, object]:
    """Return strings, or lists of strings, by key or alias. The key `config` contains the file. Raises UsageError. `-h`
    and `--version` print their text and raise SystemExit(0)."""
    known = sorted(text for action in parser._actions for text in action.option_strings)  # noqa: SLF001
    # argparse accepts -os for -osa, even with allow_abbrev=False.
    abbreviated = [
        text
        for text in arguments
        if text not in (*known, "-") and any(text.startswith("-") and flag.startswith(text) for flag in known)
    ]
    namespace, extra = parser.parse_known_intermixed_args(_with_addresses_first(parser, arguments))
    unknown = [text for text in (*abbreviated, *extra) if text.startswith("-")]
    if unknown:
        flag = unknown[0].partition("=")[0]
        near = nearest(flag, [each for each in known if each[:2] == flag[:2] == "--"])
        raise UsageError(f"unknown flag {flag}{near if 'did you' in near else ''}; -h lists all flags")
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}; -h shows what is expected")
    flags: dict[str, object] = {}
    for name, value in without_retired(vars(namespace)).items():
        key = name.removeprefix(_POSITIONAL)
        if key in flags:
            raise UsageError(f"{key} is given twice: as {value!r} and as {flags[key]!r}")
        flags[key] = value
    return flags


def flags_parser(program: str, model: type[SettingsModel], purpose: str, first: str = "") -> argparse.ArgumentParser:
    parser = bare_parser(program, purpose)
    parser.usage = " ".join(filter(None, (program, first, "[-c FILE] [settings] [ADDRESS]")))
    described = describe(model)
    *_, key = (item.name for item in described.values() if item.group == group_title(model))
    parser.epilog = (
        f"Set each key as a flag, in {title_of(model.section)} of FILE ({flag_of(key)} is {key} there),  "
        f"or as an environment variable ({variable_of(model, key)}).  "
        "Flags override the environment, which overrides the file."
    )
    add_file(parser, "a TOML file")
    groups: dict[str, Any] = {}
    documented = documentation(model)
    for item in described.values():
        if item.name == "type":
            continue
        if item.group not in groups:
            groups[item.group] = parser.add_argument_group(item.group)
        _add(groups[item.group], item, documented[item.name])
    for key, short_flags in RETIRED.items():
        options: dict[str, Any] = {"nargs": "?", "const": "true", "default": argparse.SUPPRESS}
        parser.add_argument(*short_flags, flag_of(key), dest=key, **options, help=argparse.SUPPRESS)
    return parser


def add_file(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-c", "--config", action=_Once, metavar="FILE", default=argparse.SUPPRESS, help=text)


def bare_parser(program: str, purpose: str) -> argparse.ArgumentParser:
    help_of = partial(_Help, max_help_position=_HELP_COLUMN)
    parser = _Parser(prog=program, description=purpose, allow_abbrev=False, formatter_class=help_of)
    parser.add_argument("--version", action="version", version=f"scaler {__version__}")
    return parser


def verb_parser(
    program: str, verbs: Mapping[str, str], arguments: Sequence[str], purpose: str
) -> tuple[str, argparse.ArgumentParser]:
    """Return the leading verb, and a parser for the other arguments. verbs: purposes by verb. Raises UsageError."""
    verb = arguments[0] if arguments else ""
    if verb in verbs:
        return verb, bare_parser(f"{program} {verb}", verbs[verb])
    parser = bare_parser(program, purpose)
    parser.usage = f"{program} {'|'.join(verbs)} ..."
    parser.epilog = " ".join(f"{verb}: {text}" for verb, text in verbs.items())
    parser.parse_known_args(arguments[:1])
    raise UsageError(f"give one of {program} {'|'.join(verbs)}")


class _Help(argparse.HelpFormatter):
    """Keeps flags whole; argparse would break them at hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width - len(indent))), indent)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Once(argparse.Action):
    """Stores a flag's value, and rejects a second value under any of its names."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            raise UsageError(f"{flag} is given twice: {getattr(namespace, self.dest)!r} and {values!r}")
        setattr(namespace, self.dest, values)


def _add(group: Any, item: Described, text: str) -> None:  # argparse has no public type for a group
    options: dict[str, Any] = {"action": _Once, "default": argparse.SUPPRESS, "metavar": item.setting.metavar or None}
    if item.base is bool:
        options |= {"nargs": "?", "const": "true", "metavar": "true|false"}
    elif typing.get_origin(item.base) is tuple:
        options |= {"nargs": "+", "action": "extend"}
    elif typing.get_origin(item.base) is typing.Literal:
        options["metavar"] = "|".join(typing.get_args(item.base))
    default = f" [default: {item.default_text}]" if item.default_text else ""
    help_text = f"{text}{default}".replace("%", "%%")
    if item.setting.positional:
        first: dict[str, Any] = {"nargs": "?", "default": argparse.SUPPRESS, "metavar": item.setting.metavar}
        group.add_argument(_POSITIONAL + item.name, **first, help=f"{help_text} [or {item.flag}]")
        group.add_argument(item.flag, dest=item.name, **options, help=argparse.SUPPRESS)
    else:
        group.add_argument(*item.setting.short_flags.split(), item.flag, dest=item.name, **options, help=help_text)
    for alias in item.setting.aliases:
        known = group._option_string_actions.get(flag_of(alias.name))  # noqa: SLF001 (an alias may be of two settings)
        if known is not None:
            known.help += f" and {item.name} together"
        else:
            group.add_argument(flag_of(alias.name), dest=alias.name, **options, help=f"another name of {item.name}")


def _with_addresses_first(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Keep flags from consuming the address that follows them: `-p` without a value, or the paths of `-lp`."""
    alone = {flag for action in parser._actions if action.nargs in ("?", 0) for flag in action.option_strings}  # noqa: SLF001
    addresses: list[str] = []
    others: list[str] = []
    for before, text in zip(("", *arguments), arguments, strict=False):
        follows_flag = before.startswith("-") and not before[1:2].isdigit() and before not in alone
        is_address = "://" in text and not follows_flag and not text.startswith("-")
        (addresses if is_address else others).append(text)
    return addresses + others
