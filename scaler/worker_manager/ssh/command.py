"""Script that runs on a host, the ssh command that starts it, and parsers of ssh's messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from scaler.worker_manager.ssh import Host

MARK = "scaler-ssh "  # prefix of the protocol's lines: `cores COUNT`, `wheel` (send it), `ready`, `units JSON`
UNITS_VARIABLE = "SCALER_SSH_UNITS"  # identifies processes of an earlier connection, which the next one ends
WATCHER = "scaler.worker_manager.ssh.watcher"
CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 15, 3  # keep-alive interval, and number of unanswered messages before a connection is lost
MAX_PROBLEM_CHARACTERS = 400
PROBLEM_LINES = 3

_REQUIRED = (
    "ControlMaster=no",  # a separate connection, which closes with its manager
    "RemoteCommand=none",
    # Another login may already use a forward from the user's configuration.
    "ExitOnForwardFailure=no",
    "LogLevel=INFO",  # reports the ports of forwards
)
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_SECONDS}",
    f"ServerAliveInterval={ALIVE_SECONDS}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
)
_FORWARD = re.compile(r"Allocated port ([0-9]+) for remote forward to (.*)")
_NOISE = re.compile(r"Allocated port |Warning: Permanently added |debug[0-9]: |@@@@")
NO_FORWARD = "remote port forwarding failed for listen port 0"
_HINTS = {
    "Host key verification failed": "log in once with `ssh {0}` and accept its key, or fix ~/.ssh/known_hosts",
    "Permission denied (": "`ssh {0}` must work without a password: install your key there, or add it to your agent",
    NO_FORWARD: "allow AllowTcpForwarding in its sshd_config, or set tunnel = false",
}


class Wheel(NamedTuple):
    name: str
    data: bytes
    digest: str
    extras: str


def ssh_command(host: Host, options: Sequence[str], forwards: Sequence[str], script: str) -> list[str]:
    """Return the ssh command line. forwards: local `host:port` addresses, each with a free port on the host. options:
    the user's, which override the defaults."""
    # Without forwards, also disable those in the user's configuration.
    required = _REQUIRED if forwards else (*_REQUIRED, "ClearAllForwardings=yes")
    first, last = ([word for option in some for word in ("-o", option)] for some in (required, _OPTIONS))
    remote = [word for forward in forwards for word in ("-R", f"0:{forward}")]
    port = ["-p", str(host.port)] if host.port else []
    command = f"exec sh -c {quote(script)}"
    return ["ssh", "-T", *first, *options, *last, "-S", "none", *remote, *port, "--", host.destination, command]


def watch_script(mark: str, silence_seconds: float, python_version: str, environment: str | Wheel) -> str:
    """Return the one-line script that starts the watcher on a host. environment: path of a Python, or a wheel to
    install."""
    if isinstance(environment, str):
        home, rest = ('"$HOME"', environment[1:]) if environment.startswith("~/") else ("", environment)
        prepare: Sequence[str] = (f"P={home}{quote(rest)}", 'if test -d "$P"; then P="$P/bin/python"; fi')
    else:
        prepare = _made(environment, python_version)
    wrong = f"and the manager runs {python_version}: use the same minor version everywhere"
    return "; ".join(
        (
            f"export {UNITS_VARIABLE}={quote(mark)}",
            f'echo; echo "{MARK}cores $(nproc)"',  # a profile may have printed a partial line
            *prepare,
            'V=$("$P" -c "import sys; print(str(sys.version_info[0]) + chr(46) + str(sys.version_info[1]))") || exit 1',
            f'test "$V" = {python_version} || {{ echo "$P is Python $V, {wrong}" >&2; exit 1; }}',
            f'exec "$P" -P -m {WATCHER} {silence_seconds:g}',
        )
    )


def _made(wheel: Wheel, python_version: str) -> Sequence[str]:
    steps = (
        f'head -c {len(wheel.data)} > "$D/{wheel.name}"',
        'rm -rf "$D/venv"',
        f'uv venv -q --python {python_version} "$D/venv"',
        f'uv pip install -q --python "$D/venv/bin/python" "$D/{wheel.name}{wheel.extras}"',
        'touch "$D/ready"',
    )
    missing = "uv is not installed there: install it, or set ssh_python"
    return (
        'PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin"',  # uv's install locations
        f'D="${{XDG_CACHE_HOME:-$HOME/.cache}}/scaler/environments/{wheel.digest}"',
        'mkdir -p "$D" && exec 9> "$D/lock" && flock 9 || exit 1',
        f'test -e "$D/ready" || command -v uv > /dev/null || {{ echo "{missing}" >&2; exit 1; }}',
        f'test -e "$D/ready" || {{ echo "{MARK}wheel" && {" && ".join(steps)}; }} || exit 1',
        "exec 9>&-",
        'P="$D/venv/bin/python"',
    )


def forwarded_port(line: str, forwards: Sequence[str]) -> tuple[str, int] | None:
    """Return the forward and its port on the host if a line from ssh reports its creation."""
    found = _FORWARD.match(line)
    named = {re.sub(r"[][]", "", forward): forward for forward in forwards}
    return (named[found[2].strip()], int(found[1])) if found and found[2].strip() in named else None


def problem_text(host: Host, lines: Sequence[str], how: str) -> str:
    parts = dict.fromkeys(text for text in map(str.strip, lines) if text and not _NOISE.match(text))
    text = "; ".join(list(parts)[-PROBLEM_LINES:])[:MAX_PROBLEM_CHARACTERS] or how
    hint = next((hint for part, hint in _HINTS.items() if part in text), "")
    return f"{host}: {text}" + (f": {hint.format(host.destination)}" if hint else "")
