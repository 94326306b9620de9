"""How the processes of a worker connect to servers."""

from __future__ import annotations

from scaler.config.worker import WorkerConfig
from scaler.net.access import Access
from scaler.worker.credential import credential_text


def own_access(config: WorkerConfig) -> Access:
    """Return how this process authenticates. Raises ConfigError for a malformed credential."""
    text = credential_text()
    if not text:
        return Access(is_insecure=config.insecure_no_auth, compression=config.compression)
    from scaler.security.credential import Credential  # noqa: PLC0415 (most workers have none)

    return Access(Credential.from_text(text, "the credential of the worker manager"), compression=config.compression)
