"""How this worker authenticates, and its processors, which are forked from it and fetch objects themselves.

A worker manager hands the credential over when it starts the worker: through a descriptor that the worker inherits, or
in a variable that a service fills from its store of secrets. Both are gone when the first processor starts.
"""

from __future__ import annotations

import os

from scaler.config.worker import WorkerConfig
from scaler.interpreter import HASH_SEED_VARIABLE, restart
from scaler.net.access import Access
from scaler.security import CREDENTIALS_VARIABLE

CREDENTIAL_FD_VARIABLE = "SCALER_CREDENTIAL_FD"
"""Names the descriptor with the text of the credential."""
CREDENTIAL_VARIABLE = "SCALER_CREDENTIAL"
"""Has the text itself; containers only, whose service fills it from a secret."""

_text = ""


def take_credential(hash_seed: str = "") -> None:
    """Take the credential out of the environment. Call it before anything is forked.

    hash_seed: for an interpreter without PYTHONHASHSEED, which reads the variable when it starts. Such a process starts
    once more. So does that of a container whose environment has the credential itself: the kernel shows the variables
    that a program was started with for as long as it runs, also those of every process that is forked from it.
    """
    global _text  # noqa: PLW0603 (a worker process is one peer)
    environment = os.environ
    environment.pop(CREDENTIALS_VARIABLE, None)  # the manager's own, which is not for tasks
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
    """Return the reading end of a pipe that holds a credential, for a process that inherits it."""
    reader, writer = os.pipe()
    with open(writer, "wb") as file:  # noqa: PTH123 (of a descriptor)
        file.write(text.encode())  # less than a pipe holds
    return reader


def credential_text() -> str:
    """Return the text of this worker's credential for a process that it starts; empty without one."""
    return _text


def own_access(config: WorkerConfig) -> Access:
    """Return how this process connects to servers. Raises ConfigError for a malformed credential."""
    text = credential_text()
    if not text:
        return Access(is_insecure=config.insecure_no_auth, compression=config.compression)
    from scaler.security.credential import Credential  # noqa: PLC0415 (most workers have none)

    return Access(Credential.from_text(text, "the credential of the worker manager"), compression=config.compression)
