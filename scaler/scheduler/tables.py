"""Tables as JSON, truncated to the first rows that fit in a given size. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

ANSWER_BYTES = 768 * 1024


def table(columns: Sequence[object], rows: Iterable[Sequence[object]], size_bytes: int) -> str:
    """Return a table as JSON, truncated to the first rows that fit in this size."""
    return f'{{"columns": {json.dumps(columns)}, "rows": [{", ".join(fitting(rows, size_bytes))}]}}'


def fitting(documents: Iterable[object], size_bytes: int) -> list[str]:
    """Return the first documents, as JSON, that fit in a list of this size."""
    texts: list[str] = []
    for document in documents:
        text = json.dumps(document)
        size_bytes -= len(text) + 2
        if size_bytes < 0:
            break
        texts.append(text)
    return texts


def rows_document(rows: Iterable[Any]) -> bytes:
    """Return the first rows of a table that fit in an answer."""
    found = [*rows]
    return table(found[0]._fields if found else (), found, ANSWER_BYTES).encode()
