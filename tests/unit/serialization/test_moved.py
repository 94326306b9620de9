"""Pickles that refer to modules under the names of earlier versions."""

from __future__ import annotations

import pickle
import sys

import pytest

from scaler import serialization
from scaler.extensions.graphs.plan import InnerCall
from scaler.extensions.maps.chunks import MapFunction
from scaler.serialization import MOVED

OLD_NAMES = {new: old for old, new in MOVED.items()}


def of_an_earlier_version(value: object) -> bytes:
    """Pickle with the old names, which protocol 0 writes as text."""
    text = pickle.dumps(value, protocol=0)
    for new, old in OLD_NAMES.items():
        text = text.replace(b"c%s\n" % new.encode(), b"c%s\n" % old.encode())
    return text


def test_chunk_of_an_earlier_version_can_be_loaded() -> None:
    old = of_an_earlier_version(MapFunction(serialization.dump_function(abs), "abs", spread=False))
    assert b"scaler.client.chunks" in old
    loaded = pickle.loads(old)
    assert type(loaded) is MapFunction
    assert list(pickle.loads(pickle.dumps(loaded([-1, -2])))) == [1, 2]


def test_call_inside_a_graph_of_an_earlier_version_can_be_loaded() -> None:
    old = of_an_earlier_version(InnerCall(pow, (2, 5)))
    assert b"scaler.client.graph_plan" in old
    assert pickle.loads(old) == 32


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_old_and_new_module_share_their_classes(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    __import__(old)
    classes = {name: value for name, value in vars(sys.modules[new]).items() if isinstance(value, type)}
    assert classes
    assert {name: vars(sys.modules[old])[name] for name in classes} == classes
    spec = sys.modules[new].__spec__
    assert spec is not None
    assert spec.name == new


def test_unknown_modules_remain_unknown() -> None:
    assert serialization.load([pickle.dumps(1)]) == 1
    with pytest.raises(ModuleNotFoundError):
        __import__("scaler.client.no_such_module")
