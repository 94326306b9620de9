"""Methods of clients that extensions define."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from scaler import AsyncClient, Client
from scaler.client.task_calls import ClientView
from scaler.errors import UsageError
from scaler.plugins import ExtensionMethod

LOADED = """
import sys
from scaler import Client
rooms = lambda: {name for name in sys.modules if name.startswith("scaler.extensions.")}
print(rooms())
Client.map
print("scaler.extensions.maps.calls" in rooms(), "scaler.extensions.graphs.calls" in rooms())
"""


def test_only_the_first_use_imports_an_extension() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nTrue False\n"


@pytest.mark.parametrize("kind", [Client, ClientView, AsyncClient])
@pytest.mark.parametrize("name", ["map", "starmap", "imap", "imap_unordered", "executor", "get"])
def test_has_signature_and_docstring_of_the_extension(kind: type, name: str) -> None:
    method = getattr(kind, name)
    assert inspect.getdoc(method)
    assert next(iter(inspect.signature(method).parameters)) in {"self", "calls"}


def test_names_the_missing_extension() -> None:
    class Without:
        forecast = ExtensionMethod("forecasts")

    with pytest.raises(UsageError, match="forecast needs the extension 'forecasts', which is not installed"):
        Without().forecast(1)
