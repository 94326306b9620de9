"""Calls a function once a module is imported, so that processes that never import it need not either."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def on_import(module: str, call: Callable[[], object]) -> None:
    """Call the function when the module is imported, at once if it is already."""
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watcher(module, call))


class _Watcher(MetaPathFinder):
    """Finds its module where all others do, and takes itself out."""

    def __init__(self, module: str, call: Callable[[], object]) -> None:
        self._module = module
        self._call = call

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname != self._module or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._call)
        return spec


class _CallingLoader(Loader):
    def __init__(self, loader: Loader, call: Callable[[], object]) -> None:
        self._loader = loader
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What reads the source of the module later asks its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call()
