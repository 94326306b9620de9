"""What may stand behind the ? of a route, checked once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.datastructures import QueryParams

from scaler.errors import UsageError, nearest

MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. The default is what it is where it is left out."""

    name: str
    kind: Literal["text", "count", "number", "texts"]
    default: Any
    text: str
    least: float = 0
    most: float = 1e15
    choices: tuple[str, ...] = ()

    def value(self, texts: Sequence[str]) -> Any:
        """Return its value from what was given. Raises UsageError."""
        if not texts:
            return self.default
        if self.kind == "texts":
            return tuple(map(self._chosen, texts))
        if len(texts) > 1:
            raise UsageError(f"{self.name} is given {len(texts)} times")
        if self.kind == "text":
            return self._chosen(texts[0])
        return self._number(texts[0])

    def _chosen(self, text: str) -> str:
        if len(text) > MAX_TEXT:
            raise UsageError(f"{self.name} is longer than {MAX_TEXT} characters")
        if self.choices and text not in self.choices:
            raise UsageError(f"{self.name} = {text!r}: must be one of {', '.join(self.choices)}")
        return text

    def _number(self, text: str) -> float:
        wanted = "whole number" if self.kind == "count" else "number"
        try:
            number: float = int(text) if self.kind == "count" else float(text)
        except ValueError:
            raise UsageError(f"{self.name} = {text!r}: must be a {wanted}") from None
        if not self.least <= number <= self.most:
            raise UsageError(f"{self.name} = {text}: must be a {wanted} from {self.least:g} to {self.most:g}")
        return number


def values_of(parameters: Sequence[Parameter], query: QueryParams) -> dict[str, Any]:
    """Return the value of each parameter. Raises UsageError, also for one that nobody knows."""
    known = [parameter.name for parameter in parameters]
    for name in query:
        if name not in known:
            hint = nearest(name, known) if known else "; there are none here"
            raise UsageError(f"unknown parameter {name!r}{hint}")
    return {parameter.name: parameter.value(query.getlist(parameter.name)) for parameter in parameters}
