"""The script that runs on a host, the ssh command that starts it, and the meaning of their output. Pure.

On stdout, lines that begin with `MARK` are for the manager; others are noise of shell profiles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from scaler.worker_manager.ssh.hosts import Host

MARK = "scaler-ssh "
"""Begins the lines of the protocol: `cores COUNT`, `wheel` (send it), `ready`, `units JSON`."""
UNITS_VARIABLE = "SCALER_SSH_UNITS"
"""Marks all processes of one manager on one host, so that the next connection ends what an earlier one has left."""
WATCHER = "scaler.worker_manager.ssh.watcher"
CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 15, 3
"""A connection is lost when the host leaves this many keep-alive messages unanswered, sent at this interval."""
MAX_PROBLEM_CHARACTERS = 400
PROBLEM_LINES = 3

_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_SECONDS}",
    f"ServerAliveInterval={ALIVE_SECONDS}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    "ExitOnForwardFailure=yes",
    # A connection of its own: ended with its manager, and with forwards of its own.
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",
    # Ports of forwards are reported from this level on.
    "LogLevel=INFO",
)
_FORWARD = re.compile(r"Allocated port ([0-9]+) for remote forward to ")
_NOISE = re.compile(r"Allocated port |Warning: Permanently added |debug[0-9]: |@@@@")
_HINTS = {
    "Host key verification failed": "log in once with `ssh {0}` and accept its key, or correct ~/.ssh/known_hosts",
    "Permission denied (": "`ssh {0}` must work without a password: give the host your key, or add it to your agent",
    "remote port forwarding failed": "allow AllowTcpForwarding in its sshd_config, or set tunnel = false",
}


class Wheel(NamedTuple):
    """The package that uv installs. digest: of everything that the environment depends on."""

    name: str
    data: bytes
    digest: str
    extras: str
    packages: Sequence[str]


def ssh_command(host: Host, options: Sequence[str], forwards: Sequence[str], script: str) -> list[str]:
    """Return the command line. options: of the user; the first of two counts. forwards: `host:port` as seen from here.

    A free port of the host leads to each of the forwards.
    """
    fixed = [word for option in _OPTIONS for word in ("-o", option)]
    remote = [word for forward in forwards for word in ("-R", f"0:{forward}")]
    port = ["-p", str(host.port)] if host.port else []
    return ["ssh", "-T", *options, *fixed, *remote, *port, "--", host.destination, f"exec sh -c {quote(script)}"]


def watch_script(mark: str, silence_seconds: float, python_version: str, environment: str | Wheel) -> str:
    """Return the shell script that prepares a host and becomes its watcher.

    environment: path of a Python there, or the wheel for an environment. The script is one line without characters that
    some login shells change in quotes.
    """
    prepare = _existing(environment) if isinstance(environment, str) else _made(environment, python_version)
    wrong = f"and the manager runs {python_version}: use the same minor version everywhere"
    return "; ".join(
        (
            f"export {UNITS_VARIABLE}={quote(mark)}",
            f'echo; echo "{MARK}cores $(nproc)"',  # a profile may have printed something without a line end
            *prepare,
            'V=$("$P" -c "import sys; print(str(sys.version_info[0]) + chr(46) + str(sys.version_info[1]))") || exit 1',
            f'test "$V" = {python_version} || {{ echo "$P is Python $V, {wrong}" >&2; exit 1; }}',
            f'exec "$P" -P -m {WATCHER} {silence_seconds:g}',
        )
    )


def _existing(path: str) -> Sequence[str]:
    home, rest = ('"$HOME"', path[1:]) if path.startswith("~/") else ("", path)
    return (f"P={home}{quote(rest)}", 'if test -d "$P"; then P="$P/bin/python"; fi')


def _made(wheel: Wheel, python_version: str) -> Sequence[str]:
    packages = " ".join(map(quote, wheel.packages))
    steps = (
        f'head -c {len(wheel.data)} > "$D/{wheel.name}"',
        'rm -rf "$D/venv"',
        f'uv venv -q --python {python_version} "$D/venv"',
        f'uv pip install -q --python "$D/venv/bin/python" "$D/{wheel.name}{wheel.extras}" {packages}',
        'touch "$D/ready"',
    )
    missing = "uv is not installed there: install it, or name a Python with ssh_python"
    return (
        'PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin"',  # where the installer of uv puts it
        f'D="${{XDG_CACHE_HOME:-$HOME/.cache}}/scaler/environments/{wheel.digest}"',
        'mkdir -p "$D" && exec 9> "$D/lock" && flock 9 || exit 1',
        f'test -e "$D/ready" || command -v uv > /dev/null || {{ echo "{missing}" >&2; exit 1; }}',
        f'test -e "$D/ready" || {{ echo "{MARK}wheel" && {" && ".join(steps)}; }} || exit 1',
        "exec 9>&-",
        'P="$D/venv/bin/python"',
    )


def forwarded_port(line: str) -> int | None:
    """Return the port of a line in which ssh reports a forward."""
    found = _FORWARD.match(line)
    return int(found[1]) if found else None


def problem_text(host: Host, lines: Sequence[str], how: str) -> str:
    """Return why a connection ended, on one line. lines: output of ssh and the host. how: used when there is none."""
    parts = [text for line in lines if (text := line.strip()) and not _NOISE.match(text)][-PROBLEM_LINES:]
    text = "; ".join(parts)[:MAX_PROBLEM_CHARACTERS] or how
    hint = next((hint for part, hint in _HINTS.items() if part in text), "")
    return f"{host}: {text}" + (f": {hint.format(host.destination)}" if hint else "")
