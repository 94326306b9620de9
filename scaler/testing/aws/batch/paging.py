"""Answers in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

from scaler.testing.aws.batch.values import JSON, Invalid

T = TypeVar("T")


def page(found: Iterable[T], key: Callable[[T], int], request: Mapping[str, Any], most: int) -> tuple[list[T], JSON]:
    """Return the page that a request asks for, and a `nextToken` if there is more. Raises Invalid.

    found: ordered by `key`. What comes or goes between two pages moves nothing from one page to another.
    """
    wanted = request.get("maxResults", most)
    if wanted < 1:
        raise Invalid(f"maxResults must be at least 1, got {wanted}")
    token = request.get("nextToken")
    if token is not None:
        try:
            last = int(token)
        except ValueError as error:
            raise Invalid("nextToken is not one of this service") from error
        found = (each for each in found if key(each) > last)
    size = min(wanted, most)
    shown = list(islice(found, size + 1))
    more = len(shown) > size
    return shown[:size], {"nextToken": str(key(shown[size - 1]))} if more else {}
