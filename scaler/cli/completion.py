"""`scaler completion SHELL`: a completion script with the words of the `-h` output of every command."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from shlex import quote

from scaler.cli import COMMANDS, SUBCOMMANDS, run_command
from scaler.config.commands import VERBS
from scaler.config.flags import bare_parser, parse_flags
from scaler.errors import UsageError
from scaler.monitor.tables import TABLES
from scaler.plugins import EXTENSIONS, WORKER_MANAGERS, worker_manager_type
from scaler.security.commands import KEY_VERBS

SHELLS = ("bash", "zsh", "fish")
_FILE, _TOML = "@FILE", "@TOML"
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
_POSITIONAL = re.compile(r"\[or (--[a-z-]+)\]")
_FLAGS = re.compile(r"^  (-.*?)(?:  .*)?$", re.MULTILINE)


def parse(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> str:
    parser = bare_parser(program, "Print a script for tab completion; docs/guide.md says where to put it.")
    parser.add_argument("shell", metavar="|".join(SHELLS), nargs="?")
    shell = parse_flags(parser, arguments)["shell"]
    if shell not in SHELLS:
        raise UsageError(f"give one of the shells: {program} {'|'.join(SHELLS)}")
    return str(shell)


def run(shell: str) -> int:
    sys.stdout.write(script(shell))
    return 0


def script(shell: str) -> str:
    text = resources.files("scaler.cli").joinpath(f"completion.{'fish' if shell == 'fish' else 'bash'}").read_text()
    case = "        case {}\n            echo {}" if shell == "fish" else "    {}) echo {} ;;"
    cases = "\n".join(case.format(quote(place), quote(" ".join(words))) for place, words in words_by_place().items())
    return (_ZSH if shell == "zsh" else "") + text.replace("@CASES@", cases).replace("@COMMANDS@", " ".join(COMMANDS))


@cache
def words_by_place() -> dict[str, list[str]]:
    """Return the words that may follow a command, a subcommand such as `scaler init`, and a flag after these."""
    kinds = WORKER_MANAGERS.names()
    has_sessions = EXTENSIONS.reference("durability") is not None
    sessions = import_module("scaler.extensions.durability.command").SESSION_VERBS if has_sessions else {}
    first = {
        "scaler": [*(name.removeprefix("scaler ") for name in SUBCOMMANDS), _TOML],
        "scaler init": kinds,
        "scaler completion": [*SHELLS],
        "scaler keys": [*KEY_VERBS],
        **{f"scaler keys {verb}": [] for verb in KEY_VERBS},
        "scaler sessions": [*sessions],
        **{f"scaler sessions {verb}": [] for verb in sessions},
        "scaler show": [*TABLES],
        "scaler trace": [_FILE],
        "scaler_worker_manager": kinds,
    }
    for kind in kinds:
        verbs = VERBS if worker_manager_type(kind).provision else ()
        first |= {f"scaler_worker_manager {kind}": [*verbs]}
        first |= {f"scaler_worker_manager {kind} {verb}": [] for verb in verbs}
    found: dict[str, list[str]] = {}
    for place in dict.fromkeys([*COMMANDS, *SUBCOMMANDS, *first]):
        flags = _flags_of(place)
        found |= {f"{place} {flag}": words for flag, words in flags.items() if words is not None}
        found[place] = [*flags, *first.get(place, [])]
    return found


def _flags_of(place: str) -> dict[str, list[str] | None]:
    command, *words = place.split()
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        run_command(command, [*words, "-h"])
    found: dict[str, list[str] | None] = {flag: [] for flag in _POSITIONAL.findall(" ".join(text.getvalue().split()))}
    for shown in _FLAGS.findall(text.getvalue()):
        for flag, _, form in (each.partition(" ") for each in shown.split(", ")):
            choices = form.strip("[]").split("|")
            is_file = form.split(" ")[0] in ("FILE", "PATH")
            files = [_TOML if "--config" in shown else _FILE] if is_file else []
            found[flag] = (choices if len(choices) > 1 else files) if form else None
    return found
