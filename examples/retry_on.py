"""Retry a task when it raises a transient exception, such as a network error.

If its process or worker dies, a task is retried automatically; after its own exceptions, only if retry_on lists them.

Prints::

    fetched the rates in attempt 3
    ConnectionError: the server is down (attempt 2)
    ValueError: not a currency: 'XXX'
"""

import tempfile
from pathlib import Path

from scaler import Client, SchedulerClusterCombo


def fetch_rates(currency, log, works_at):
    """Simulates a call to an unreliable server. The log counts the calls."""
    if currency == "XXX":
        raise ValueError(f"not a currency: {currency!r}")
    attempt = len(log.read_text()) + 1 if log.exists() else 1
    log.write_text("x" * attempt)
    if attempt < works_at:
        raise ConnectionError(f"the server is down (attempt {attempt})")
    return f"fetched the rates in attempt {attempt}"


with (
    tempfile.TemporaryDirectory() as directory,
    SchedulerClusterCombo(n_workers=1) as cluster,
    Client(address=cluster.get_address()) as client,
):
    logs = Path(directory)
    jobs = [
        ("EUR", logs / "eur", 3, 5),  # succeeds in the third attempt
        ("USD", logs / "usd", 9, 1),  # never succeeds, and is retried once
        ("XXX", logs / "xxx", 1, 5),  # another exception, so never retried
    ]
    for *arguments, retries in jobs:
        future = client.submit_verbose(
            fetch_rates, arguments, retries=retries, retry_on=(ConnectionError, TimeoutError)
        )
        error = future.exception()
        print(f"{type(error).__name__}: {error}" if error else future.result())
