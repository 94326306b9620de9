"""The JSON documents that the web server answers, as docs/web-api.md describes them, and errors. Pure."""

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
    """Return a document as JSON in ASCII: texts of a cluster may hold unpaired surrogates, which UTF-8 cannot encode.

    Raises ValueError for a number that JSON cannot express.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def answer(document: object, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(dump(document), status, headers, "application/json")


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error. text: what is wrong and what to do about it."""
    return answer({"error": text}, headers, status)
