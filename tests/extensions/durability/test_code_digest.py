"""Changes that affect the digest of a function's code, and changes that do not."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from scaler.errors import UsageError
from scaler.extensions.durability.code_digest import code_digest


def compiled(source: str, **others: object) -> Callable[..., Any]:
    """Return the function `f` of a program."""
    module = ModuleType("program")
    names = vars(module)
    names |= others
    sys.modules["program"] = module  # its classes are found by name, like classes of modules
    exec(source, names)
    function: Callable[..., Any] = names["f"]
    return function


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x.a", "def f(x): return x.b"),
        ("def f(x, y=1): return x", "def f(x, y=2): return x"),
        ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
        ("def g(x): return x\ndef f(x): return g(x)", "def g(x): return -x\ndef f(x): return g(x)"),
        ("N = 1\ndef f(x): return x + N", "N = 2\ndef f(x): return x + N"),
        ("def f(x): return (lambda: x + 1)()", "def f(x): return (lambda: x + 2)()"),
        ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
        (
            "class A:\n def g(self): return 1\ndef f(x): return A().g()",
            "class A:\n def g(self): return 2\ndef f(x): return A().g()",
        ),
        (
            "class A:\n @property\n def g(self): return 1\ndef f(x): return A().g",
            "class A:\n @property\n def g(self): return 2\ndef f(x): return A().g",
        ),
        ("class A:\n n = 1\ndef f(x): return A.n", "class A:\n n = 2\ndef f(x): return A.n"),
        *(
            (source, source.replace("+ 1", "+ 2"))
            for source in (
                "import functools\n@functools.cache\ndef g(x): return x + 1\ndef f(x): return g(x)",
                "import functools\n@functools.cache\ndef f(x): return x + 1",
                (
                    "from functools import cached_property as c\nclass A:\n @c\n def g(self): return 1 + 1\n"
                    "def f(x): return A().g"
                ),
                "class A:\n @staticmethod\n def g(x): return x + 1\ndef f(x): return A.g(x)",
                "class A:\n def __new__(cls): return 1 + 1\ndef f(x): return A()",
                "class A:\n def g(self): return 1 + 1\n def h(self): return self.g()\nf = A().h",
                "class A:\n def __call__(self, x): return x + 1\nf = A()",
                "class A:\n def g(self): return 1 + 1\na = A()\ndef f(x): return a.g()",
                "def g(x): return x + 1\nd = {'g': g}\ndef f(x): return d['g'](x)",
                "def f(x): return f.step\nf.step = 1 + 1",
                "import _thread\nd = {'lock': _thread.allocate_lock(), 'n': 1 + 1}\ndef f(x): return d['n']",
                (
                    "import _thread\nclass A:\n def __init__(self): self.l, self.n = _thread.allocate_lock(), 1 + 1\n"
                    "a = A()\ndef f(x): return a.n"
                ),
            )
        ),
        (
            "def make(n):\n def f(x): return x + n\n return f\nf = make(1)",
            "def make(n):\n def f(x): return x + n\n return f\nf = make(2)",
        ),
    ],
)
def test_digest_changes_with_the_behaviour_of_the_function(before: str, after: str) -> None:
    assert code_digest(compiled(before)) != code_digest(compiled(after))
    assert code_digest(compiled(before)) == code_digest(compiled(before))


def test_digest_ignores_comments_locations_and_other_functions() -> None:
    before = compiled("def f(x):\n    return x + 1")
    after = compiled("def other(): return 2\n\n# a comment\ndef f(x):\n\n    return x + 1  # another one")
    assert code_digest(before) == code_digest(after)


def test_installed_package_counts_only_by_its_name() -> None:
    assert code_digest(json.dumps) != code_digest(json.loads)
    assert code_digest(len) != code_digest(abs)


def test_partial_functions_and_methods_count_their_values() -> None:
    assert code_digest(functools.partial(pow, 2)) != code_digest(functools.partial(pow, 3))
    assert code_digest("a".join) != code_digest("b".join)


def test_uncallable_object_raises() -> None:
    with pytest.raises(UsageError, match="3 is not callable"):
        code_digest(3)
