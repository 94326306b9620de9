"""The syntax of the preload hook."""

from __future__ import annotations

import pytest

from scaler.config.values import parse_preload
from scaler.errors import UsageError


def test_preload_arguments_may_be_literals() -> None:
    module, function, args, kwargs = parse_preload("m:f('a:b', -1.5, [1, {'k': (None, True)}], debug=False)")
    assert (module, function) == ("m", "f")
    assert args == ("a:b", -1.5, [1, {"k": (None, True)}])
    assert kwargs == {"debug": False}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module",
        "module:",
        ":function",
        "mod-ule:function",
        "module:function(",
        "module:function(x)",
        "module:function(open('f'))",
        "module:function(1 + x)",
        "module:function(f'{1}')",
        "module:function(*[1])",
        "module:function(**{'a': 1})",
        "module:a.b()",
        "module:f()()",
        "module:lambda: 0",
        "module:f; g",
        "module:f\x00",
    ],
)
def test_other_syntax_is_rejected_without_being_run(text: str) -> None:
    with pytest.raises(UsageError, match="preload"):
        parse_preload(text)
