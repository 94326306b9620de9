"""How this worker authenticates, and its processors, which are forked from it and fetch objects themselves.

A worker manager hands the credential over when it starts the worker: through a descriptor that the worker inherits, or
in a variable that a service fills from its store of secrets. Both are gone when the first processor starts.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from scaler.config.worker import WorkerConfig

if TYPE_CHECKING:
    from scaler.net.access import Access

CREDENTIAL_FD_VARIABLE = "SCALER_CREDENTIAL_FD"
"""Names the descriptor with the text of the credential."""
CREDENTIAL_VARIABLE = "SCALER_CREDENTIAL"
"""Has the text itself; containers only, whose service fills it from a secret."""
MAX_CREDENTIAL_BYTES = 64 * 1024

_text = ""


def take_credential(environment: MutableMapping[str, str] = os.environ) -> None:
    """Take the credential out of the environment. Call it before anything is forked."""
    global _text  # noqa: PLW0603 (a worker process is one peer)
    _text = environment.pop(CREDENTIAL_VARIABLE, "")
    descriptor = environment.pop(CREDENTIAL_FD_VARIABLE, None)
    if descriptor is not None:
        with open(int(descriptor), "rb") as file:  # noqa: PTH123 (of a descriptor)
            _text = file.read(MAX_CREDENTIAL_BYTES).decode()


def own_access(config: WorkerConfig) -> Access:
    """Return how this process authenticates. Raises ConfigError when the credential cannot be read."""
    from scaler.net.access import Access  # noqa: PLC0415 (most processors never connect)
    from scaler.security.credential import Credential  # noqa: PLC0415

    if not _text:
        return Access(is_insecure=config.insecure_no_auth)
    return Access(Credential.from_text(_text, "the credential of the worker manager"))
