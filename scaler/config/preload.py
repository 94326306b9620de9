"""Syntax of the preload hook: `module.path:function` or `module.path:function(literals)`."""

from __future__ import annotations

import ast
from typing import NamedTuple

from scaler.errors import UsageError

_SHAPE = (
    "write module.path:function or module.path:function(literals), such as mypackage.setup:connect('eu', retries=2)"
)


class PreloadCall(NamedTuple):
    module: str
    function: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


def parse_preload(text: str) -> PreloadCall:
    """Parse a preload hook without importing the module. Raises UsageError."""
    module, separator, call = (part.strip() for part in text.partition(":"))
    if not separator or not all(name.isidentifier() for name in module.split(".")):
        raise UsageError(f"preload {text!r}: {_SHAPE}")
    try:
        tree = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError):
        raise UsageError(f"preload {text!r}: {call!r} is not a function or a call; {_SHAPE}") from None
    if isinstance(tree, ast.Name):
        return PreloadCall(module, tree.id, (), {})
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise UsageError(f"preload {text!r}: {call!r} is not a function or a call; {_SHAPE}")
    keywords: dict[str, object] = {}
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise UsageError(f"preload {text!r}: '**' is not allowed, write each argument by its name")
        keywords[keyword.arg] = _literal(text, keyword.value)
    return PreloadCall(module, tree.func.id, tuple(_literal(text, argument) for argument in tree.args), keywords)


def _literal(text: str, node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise UsageError(
            f"preload {text!r}: {ast.unparse(node)!r} is not a literal; use numbers, strings, booleans, None, "
            "or lists, tuples, sets, or dicts of these"
        ) from None
