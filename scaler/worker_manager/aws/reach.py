"""Whether what runs on AWS can reach a scheduler. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_only_here(address: str) -> bool:
    """Tell whether an address means something else on every machine."""
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "0.0.0.0", "::1", "") or host.startswith("127.")  # noqa: S104 (it is not bound)


def unreachable(what: str, address: str, endpoint_url: str | None) -> str:
    """Return what to say when workers on AWS cannot reach their scheduler; empty when they may, or run elsewhere."""
    if endpoint_url is not None or not is_only_here(address):
        return ""
    return (
        f"{what} cannot reach the scheduler at {address}: set worker_scheduler_address to the address that they know "
        "it by"
    )
