"""The JSON documents and errors of the web server, as documented in docs/web-api.md. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from scaler.monitor.model import Model
from scaler.monitor.rows import View, view


def status_view(model: Model) -> View:
    rates = {name: model.series.last(name) for name in ("tasks_per_second", "failed_per_second")}
    return {**view(model.status), **rates, "tasks_left_out": model.dropped}


# -- responses


def dump(document: object) -> bytes:
    """Return a document as ASCII JSON, because texts may contain unpaired surrogates, which UTF-8 cannot encode.

    Raises ValueError for a number that JSON cannot express.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def answer(document: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(dump(document), status, headers, "application/json")


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error. text: what is wrong and what to do about it."""
    return answer({"error": text}, headers, status)
