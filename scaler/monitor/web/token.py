"""The login token of the web page: storage and display."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from pathlib import Path

from scaler.config.addresses import is_open_to_others
from scaler.config.monitors import WebUiConfig
from scaler.errors import ConfigError, UsageError
from scaler.output import OutputRelay
from scaler.paths import local_path
from scaler.registry import private_path
from scaler.security.private_files import read_private, write_private

TOKEN_FILE = "web-token"  # noqa: S105 (a file's name)
MIN_TOKEN_CHARACTERS = 22
KEEP_SECONDS = 1.0
"""Interval at which a web server checks for its token file."""


def load_token(path: str | None) -> tuple[str, Path]:
    """Return the token and its file: the given file, or this user's own file, which is created if missing.

    Raises UsageError if the file cannot be read or created, if other users can read it, or if the token is too
    short.
    """
    file = private_path(TOKEN_FILE) if path is None else local_path(path)
    if path is None and not file.exists():
        token = secrets.token_urlsafe()
        try:
            with contextlib.suppress(FileExistsError):  # created by another server
                write_private(file, f"{token}\n")
                return token, file  # which a cleaner may have removed by now
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}; set web_token_file") from None
    token = read_private(file).strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise ConfigError(f"the token in {file} must have at least {MIN_TOKEN_CHARACTERS} letters and digits")
    return token, file


async def keep_token(token: str) -> None:
    """Recreate this user's own token file whenever a cleaner has removed it. Runs until cancelled."""
    while True:
        await asyncio.sleep(KEEP_SECONDS)
        await asyncio.to_thread(_write_again, token)


def _write_again(token: str) -> None:
    with contextlib.suppress(UsageError, OSError):  # the next call retries
        file = private_path(TOKEN_FILE)
        if not file.exists():
            write_private(file, f"{token}\n")


def link_to_show(config: WebUiConfig, page: str) -> str:
    """Return a link to the page, with the token only on a terminal, because other users may read a log."""
    is_terminal = OutputRelay.leads_to_terminal or sys.stdout.isatty()
    if config.insecure_no_auth or not (is_open_to_others(config.web_host) and is_terminal):
        return page
    try:
        return f"{page}/?token={load_token(config.web_token_file)[0]}"
    except UsageError:  # the web server reports the error
        return page
