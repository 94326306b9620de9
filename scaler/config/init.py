"""`scaler init [TYPE ...]`: writes a commented file for worker managers, with keys and comments from the models."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence

from scaler.config.flags import bare_parser, parse_flags
from scaler.config.load import title_of
from scaler.config.monitors import WebUiConfig
from scaler.config.servers import scheduler_model
from scaler.config.setting import Described, LoggingConfig, SettingsModel, describe, documentation, group_title
from scaler.config.worker_managers import settings_model
from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.plugins import WORKER_MANAGERS, worker_manager_type

STDOUT = "-"
ADDRESS = "tcp://127.0.0.1:8516"
_WIDTH = 98
_LOGGING = group_title(LoggingConfig)


def init(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> int:
    parser = bare_parser(program, "Write a commented TOML file for `scaler FILE` with a worker manager of each TYPE.")
    text = f"one of {', '.join(WORKER_MANAGERS.names())} [default: baremetal_native]; the first is filled first"
    parser.add_argument("kinds", metavar="TYPE", nargs="*", help=text)
    text = "file to create [default: scaler.toml]; - writes to stdout"
    parser.add_argument("-o", "--output", metavar="FILE", default="scaler.toml", help=text)
    flags: dict[str, typing.Any] = parse_flags(parser, arguments)
    path = flags["output"]
    text = file_text(flags["kinds"] or ["baremetal_native"], path)
    if path == STDOUT:
        sys.stdout.write(text)
        return 0
    try:
        with local_path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path!r} already exists: choose another file with --output") from None
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror}") from None
    fill_in = "fill in the required keys, then " if "# Required." in text else ""
    sys.stdout.write(f"wrote {path}: {fill_in}start it with scaler {path}\n")
    return 0


def file_text(kinds: Sequence[str], path: str = STDOUT) -> str:
    file = "FILE" if path == STDOUT else path
    clouds = [kind for kind in dict.fromkeys(kinds) if worker_manager_type(kind).provision]
    names = [kind if kinds.count(kind) == 1 else f"{kind}-{number}" for number, kind in enumerate(kinds, 1)]
    tiers = "".join(f"{number}, {name}, -1\n" for number, name in enumerate(names, 1))
    policy = {"policy_engine_type": '"waterfall_v1"', "policy_content": f'"""\n{tiers}"""'} if len(names) > 1 else {}
    lines = [
        *(f"#     scaler_worker_manager {kind} setup -c {file}    # once: creates its resources" for kind in clouds),
        f"#     scaler {file}    # starts everything; Ctrl-C stops it",
        "#",
        *_comment(f"Clients connect to {ADDRESS}. Commented keys show their default, or a placeholder in capitals."),
        *_comment("The policy has tiers: a tier grows only when the tiers before it are full." if policy else ""),
        *_table(scheduler_model(), {"bind_address": json.dumps(ADDRESS), **policy}),
        *_table(WebUiConfig, {}, implied={"monitor_address"}),
    ]
    for kind, name in zip(kinds, names, strict=True):
        own = {"type": json.dumps(kind), "worker_manager_id": json.dumps(name)}
        lines += _table(settings_model(kind), own, implied={"scheduler_address"})
    return "\n".join([*lines, ""])


def _table(model: type[SettingsModel], own: Mapping[str, str], implied: Collection[str] = ()) -> Iterator[str]:
    note = getattr(model, "note", "")
    yield from ("", *_comment(inspect.cleandoc(model.__doc__ or "")), *_comment(note), title_of(model.section))
    documented, group = documentation(model), group_title(model)
    types = typing.get_type_hints(model)
    items = {name: item for name, item in describe(model).items() if name not in implied}
    for key, value in own.items():
        yield from (*_comment(documented.get(key, "")), f"{key} = {value}")
    # Required keys first.
    for key, item in sorted(items.items(), key=lambda each: not each[1].required):
        if key in own or item.group == _LOGGING:
            continue
        if item.group != group and not item.required:
            group = item.group
            yield from ("", *_comment(f"-- {group}"))
        form, is_default = _form(item, types[key])
        head = "Required. " if item.required else ""
        tail = "" if item.required or is_default else f" Default: {item.default_text}."
        yield from _comment(head + documented.get(key, "") + tail)
        yield f"{key} = {'[]' if form.startswith('[') else json.dumps('')}" if item.required else f"#{key} = {form}"
    logging = ", ".join(key for key, item in items.items() if item.group == _LOGGING)
    yield from _comment(f"Also {logging}: docs/settings.md explains them.")


def _form(item: Described, kind: object) -> tuple[str, bool]:
    if item.default is not dataclasses.MISSING and item.default not in (None, "", ()):
        return json.dumps(item.default), True
    name = item.setting.metavar or item.name.upper()
    if typing.get_origin(kind) is tuple:
        return json.dumps([name]), False
    return name if int in (kind, *typing.get_args(kind)) else json.dumps(name), False


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from (f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH))
