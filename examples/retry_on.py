"""Try a task again when it raises an exception that may pass, such as one of the network.

A task whose process or worker dies is tried again by itself; its own exceptions only if retry_on names them.

Prints::

    fetched the rates at attempt 3
    ConnectionError: the server is down (attempt 2)
    ValueError: not a currency: 'XXX'
"""

import tempfile
from pathlib import Path

from scaler import Client, SchedulerClusterCombo


def fetch_rates(currency, log, works_at):
    """Stands for a call to an unreliable server. The log shows how often it was called."""
    if currency == "XXX":
        raise ValueError(f"not a currency: {currency!r}")
    attempt = len(log.read_text()) + 1 if log.exists() else 1
    log.write_text("x" * attempt)
    if attempt < works_at:
        raise ConnectionError(f"the server is down (attempt {attempt})")
    return f"fetched the rates at attempt {attempt}"


with (
    tempfile.TemporaryDirectory() as directory,
    SchedulerClusterCombo(n_workers=1) as cluster,
    Client(address=cluster.get_address()) as client,
):
    logs = Path(directory)
    jobs = [
        ("EUR", logs / "eur", 3, 5),  # works at its third attempt
        ("USD", logs / "usd", 9, 1),  # does not work, and may be tried again once
        ("XXX", logs / "xxx", 1, 5),  # another exception: never tried again
    ]
    for *arguments, retries in jobs:
        future = client.submit_verbose(
            fetch_rates, arguments, retries=retries, retry_on=(ConnectionError, TimeoutError)
        )
        error = future.exception()
        print(f"{type(error).__name__}: {error}" if error else future.result())
