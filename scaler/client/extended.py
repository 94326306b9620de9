"""The methods of clients that extensions define. extended.pyi declares their types, and this module imports none of
them: the first use of a method does."""

from scaler.plugins import ExtensionMethod

_ASKED = "scaler.client.asynchronous:asked"


class ExtendedCalls:
    map = ExtensionMethod("maps")
    starmap = ExtensionMethod("maps")
    imap = ExtensionMethod("maps")
    imap_unordered = ExtensionMethod("maps")
    executor = ExtensionMethod("maps")
    get = ExtensionMethod("graphs")
    cache = ExtensionMethod("durability")


class AsyncExtendedCalls:
    map = ExtensionMethod("maps", "async_client")
    starmap = ExtensionMethod("maps", "async_client")
    imap = ExtensionMethod("maps", "async_client")
    imap_unordered = ExtensionMethod("maps", "async_client")
    executor = ExtensionMethod("maps", "async_client")
    get = ExtensionMethod("graphs", "async_client")


class ExtendedQuestions:
    bundle = ExtensionMethod("failures", "questions")
    futures = ExtensionMethod("durability", "questions")
    replay = ExtensionMethod("failures", "questions")
    history = ExtensionMethod("history", "questions")
    logs = ExtensionMethod("logs", "questions")
    profile = ExtensionMethod("profiles", "questions")


class AsyncExtendedQuestions:
    bundle = ExtensionMethod("failures", "questions", _ASKED)
    futures = ExtensionMethod("durability", "questions", _ASKED)
    replay = ExtensionMethod("failures", "questions", _ASKED)
    history = ExtensionMethod("history", "questions", _ASKED)
    logs = ExtensionMethod("logs", "questions", _ASKED)
    profile = ExtensionMethod("profiles", "questions", _ASKED)
