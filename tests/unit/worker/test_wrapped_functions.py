"""Extensions wrap the functions of specs with a context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaler.ids import content_id
from scaler.serialization import dump_function, to_payload
from scaler.worker.processor.functions import FunctionCache, Loaded, LoadedSpec, StoredObjects


class Wrapped:
    def __init__(self, loaded: Loaded, text: str) -> None:
        self.loaded, self.text = loaded, text

    def get(self) -> Callable[..., Any]:
        function = self.loaded.get()
        return lambda *args: f"{self.text} {function(*args)}"


def no_storage(*_: object) -> Any:
    raise AssertionError("nothing is stored")


def test_functions_of_specs_with_a_context_are_wrapped() -> None:
    objects = StoredObjects(no_storage, lambda _text: None)
    cache = FunctionCache(objects, no_storage, [lambda spec, loaded: Wrapped(loaded, spec.context)])
    payload = to_payload(dump_function(len, None))
    identifier = content_id(payload)
    cache.definitions[identifier] = payload
    for number, (context, result) in enumerate([("", 4), ("traced", "traced 4")]):
        cache.add_spec(number, identifier, b"", b"", b"", "len", False, False, False, (), context)
        spec: LoadedSpec = cache.specs[number]
        assert cache.load(spec)("word") == result
        assert spec.function is not None
        assert spec.function.get()("word") == result
