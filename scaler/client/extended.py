"""Client methods that extensions define. extended.pyi declares their types. An extension is imported when one of its
methods is first used."""

from scaler.plugins import ExtensionMethod

_ASKED = "scaler.extensions.asynchronous.client:asked"
_CALLS = {
    "maps": ("map", "starmap", "imap", "imap_unordered", "executor"),
    "graphs": ("get",),
    "gangs": ("gang",),
    "streams": ("stream",),
}
"""Names of methods by extension; see `_QUESTIONS`."""
_QUESTIONS = {
    "data_plane": ("persist",),
    "durability": ("futures",),
    "environment": ("upload",),
    "failures": ("bundle", "replay"),
    "history": ("history",),
    "logs": ("logs",),
    "profiles": ("profile",),
    "queries": (
        "cancel",
        "cluster",
        "explain",
        "objects",
        "restart_workers",
        "run",
        "table",
        "tasks",
        "wait_for_workers",
        "who_has",
    ),
    "telemetry": ("trace",),
}


def _class(name: str, methods: dict[str, tuple[str, ...]], *how: str) -> type:
    found = {method: ExtensionMethod(extension, *how) for extension, names in methods.items() for method in names}
    return type(name, (), found)


ExtendedCalls = _class("ExtendedCalls", {**_CALLS, "durability": ("cache",)})
AsyncExtendedCalls = _class("AsyncExtendedCalls", _CALLS, "async_client")
ExtendedQuestions = _class("ExtendedQuestions", _QUESTIONS, "questions")
AsyncExtendedQuestions = _class("AsyncExtendedQuestions", _QUESTIONS, "questions", _ASKED)
