"""Requirements pinned to the installed versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


def locked(requirements: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Return requirements pinned to the installed versions, including all dependencies. own: a user's requirements,
    unchanged except that bare names (also with extras) are pinned if installed here. An extra is replaced by its
    dependencies, because constraint files do not accept extras. Dependencies for other platforms are left to the
    installer."""
    found = {_name_of(each): each for each in own}
    plain = [each for each in found.values() if (read := parsed(each)) is not None and not (read.specifier or read.url)]
    as_given = found.keys() - {_name_of(each) for each in plain}
    pending = [each for each in map(parsed, (*requirements, *plain)) if each is not None]
    done: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name in as_given or (name, extra) in done:
                continue
            done.add((name, extra))
            try:
                installed = distribution(name)
            except PackageNotFoundError:
                break
            found[name] = f"{name}=={installed.version}"
            pending += of_extra(installed.requires or (), extra)
    return [found[name] for name in sorted(found)]


def of_extra(declared: Iterable[str], extra: str) -> Iterator[Requirement]:
    """Yield a distribution's requirements for an extra on this platform. extra: empty for the base requirements."""
    for each in map(Requirement, declared):
        marker = each.marker
        is_in_any_case = marker is None or marker.evaluate({"extra": ""})
        if is_in_any_case != bool(extra) and (marker is None or marker.evaluate({"extra": extra})):
            each.marker = None
            yield each


def parsed(requirement: str) -> Requirement | None:
    try:
        return Requirement(requirement)
    except InvalidRequirement:
        return None


def _name_of(requirement: str) -> str:
    read = parsed(requirement)
    return requirement if read is None else canonicalize_name(read.name)
