"""The methods of clients that extensions define. extended.pyi declares their types, and this module imports none of
them: the first use of a method does."""

from scaler.plugins import ExtensionMethod

_ASKED = "scaler.extensions.asynchronous.client:asked"
_CALLS = {
    "map": "maps",
    "starmap": "maps",
    "imap": "maps",
    "imap_unordered": "maps",
    "executor": "maps",
    "get": "graphs",
}
_QUESTIONS = {
    "bundle": "failures",
    "futures": "durability",
    "replay": "failures",
    "history": "history",
    "logs": "logs",
    "profile": "profiles",
}


def _class(name: str, methods: dict[str, str], *how: str) -> type:
    return type(name, (), {method: ExtensionMethod(extension, *how) for method, extension in methods.items()})


ExtendedCalls = _class("ExtendedCalls", {**_CALLS, "cache": "durability"})
AsyncExtendedCalls = _class("AsyncExtendedCalls", _CALLS, "async_client")
ExtendedQuestions = _class("ExtendedQuestions", _QUESTIONS, "questions")
AsyncExtendedQuestions = _class("AsyncExtendedQuestions", _QUESTIONS, "questions", _ASKED)
