"""JSON as every route sends it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

JSON_TYPE = "application/json"


def dump(document: object) -> bytes:
    """Return a document as JSON in ASCII: texts of a cluster may hold halves of surrogate pairs, which UTF-8 has not.

    Raises ValueError for a number that JSON has not.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def answer(document: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dump(document), media_type=JSON_TYPE, headers=headers)


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error. text: what is wrong and what to do about it."""
    return Response(dump({"error": text}), status, headers, JSON_TYPE)
