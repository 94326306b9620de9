"""Authentication of this worker and its processors. The worker manager passes the credential through an inherited
file descriptor, or in a variable that a service fills from its secret store. Both are removed before processors
start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from scaler.config.worker import WorkerConfig
from scaler.interpreter import HASH_SEED_VARIABLE, restart
from scaler.net.access import Access
from scaler.security import CREDENTIALS_VARIABLE

CREDENTIAL_FD_VARIABLE = "SCALER_CREDENTIAL_FD"
"""Number of the file descriptor with the credential's text."""
CREDENTIAL_VARIABLE = "SCALER_CREDENTIAL"
"""The credential's text. Only for containers whose service sets the variable from a secret."""

_text = ""


def take_credential(hash_seed: str = "") -> None:
    """Remove the credential from the environment. Call before anything is forked.

    Restarts the program in two cases. First, if hash_seed is given and PYTHONHASHSEED is not set, because the
    interpreter reads it only at startup. Second, if the environment contains the credential itself, because the kernel
    shows a program's initial environment for its lifetime, including in forked processes.
    """
    global _text  # noqa: PLW0603 (a worker process is one peer)
    environment = os.environ
    environment.pop(CREDENTIALS_VARIABLE, None)  # the manager's own credentials, which tasks must not see
    changes = {HASH_SEED_VARIABLE: hash_seed} if hash_seed and not environment.get(HASH_SEED_VARIABLE) else {}
    if text := environment.pop(CREDENTIAL_VARIABLE, ""):
        reader = pipe_with(text)
        os.set_inheritable(reader, True)
        changes[CREDENTIAL_FD_VARIABLE] = str(reader)
    if changes:
        restart(changes)
    descriptor = environment.pop(CREDENTIAL_FD_VARIABLE, None)
    if descriptor is not None:
        with open(int(descriptor), "rb") as file:  # noqa: PTH123 (of a descriptor)
            _text = file.read().decode()


def pipe_with(text: str) -> int:
    """Return the reading end of a pipe that contains the credential, for a child process."""
    reader, writer = os.pipe()
    with open(writer, "wb") as file:  # noqa: PTH123 (of a descriptor)
        file.write(text.encode())  # fits into a pipe's buffer
    return reader


@contextlib.contextmanager
def inherited_credential(text: str) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Context manager that passes a credential, if any, to a child process. Yields the child's variables and file
    descriptors."""
    if not text:
        yield {}, []
        return
    reader = pipe_with(text)
    try:
        yield {CREDENTIAL_FD_VARIABLE: str(reader)}, [reader]
    finally:
        os.close(reader)


def credential_text() -> str:
    return _text


def keep_credential(text: str) -> None:
    """Set the credential of a program that a worker has started."""
    global _text  # noqa: PLW0603 (as above)
    _text = text


def own_access(config: WorkerConfig) -> Access:
    """Return how this process authenticates to servers. Raises ConfigError for a malformed credential."""
    text = credential_text()
    if not text:
        return Access(is_insecure=config.insecure_no_auth, compression=config.compression)
    from scaler.security.credential import Credential  # noqa: PLC0415 (most workers have none)

    return Access(Credential.from_text(text, "the credential of the worker manager"), compression=config.compression)
