"""The password with which the session is opened: in a file that nobody else can read."""

from __future__ import annotations

import os
import stat

from scaler.errors import ConfigError

MAX_PASSWORD_FILE_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_password(path: str | None) -> str:
    """Return the first line of the file; without a file, an empty password.

    Raises ConfigError when it cannot be read, when others may read or write it, or when it holds no password.
    """
    if path is None:
        return ""
    setting = f"symphony_password_file {path!r}"
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (the mode must be that of the file that is read)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_PASSWORD_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{setting} cannot be read: {error.strerror}") from None
    if mode & _OTHERS:
        raise ConfigError(f"{setting} is open to others (its mode is {mode:04o}): chmod 600 it")
    line = data.partition(b"\n")[0].removesuffix(b"\r")
    if not line:
        raise ConfigError(f"{setting} has no password in its first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} is not UTF-8") from None
