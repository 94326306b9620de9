"""Capabilities and amounts in the form that users write and read: in task options, settings, and messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from scaler.errors import UsageError
from scaler.needs import (
    BYTE_PREFIXES,
    COUNTED,
    CPUS,
    GPU,
    LIMIT,
    MEMORY,
    NAME,
    UNITS_PER_ONE,
    Needs,
    checked,
    exact_bytes,
)

_BYTES = re.compile(r"\s*([0-9.]+)\s*([kMGT]?)(i?)B\s*", re.IGNORECASE)


def amount_text(name: str, amount: float) -> str:
    """Return an amount for display: 8 GB of memory, 1 gpu, 2.5 cpus."""
    if name == MEMORY:
        return f"{bytes_text(amount)} of memory"
    unit = name.removesuffix("s")
    return f"{amount:g} {unit if amount == 1 else unit + 's'}"


def bytes_text(count: float) -> str:
    exact = exact_bytes(count)
    if len(exact) <= 8:
        return exact
    power = min(4, int(math.log10(count)) // 3)
    return f"{math.floor(count / 1000**power * 10) / 10:g} {BYTE_PREFIXES[power]}B"


def parse_bytes(text: str) -> float:
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 8GB or 512MiB")
    number, prefix, binary = match.groups()
    power = BYTE_PREFIXES.index(prefix.upper() or " ")
    return float(number) * float((1024 if binary else 1000) ** power)


def task_needs(
    capabilities: Mapping[str, float | None] | None,
    memory: float | str | None = None,
    cpus: float | None = None,
    gpu: float | None = None,
    resources: object = None,
    limits: object = None,
) -> Needs:
    """Build a task's needs from its options. Raises UsageError with the option and the remedy."""
    wanted = dict(capabilities or {})
    for name, given in ((MEMORY, memory), (CPUS, cpus), (GPU, gpu)):
        if given is None:
            continue
        if name in wanted:
            raise UsageError(f"{name}={given!r} and capabilities[{name!r}] are duplicates: leave one out")
        amount: object = given
        if name == MEMORY and isinstance(given, str):
            try:
                amount = parse_bytes(given)
            except ValueError as error:
                raise UsageError(f"memory is {error}") from None
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < math.inf:
            what = 'bytes above 0, or text such as "8GB"' if name == MEMORY else "a number above 0"
            raise UsageError(f"{name} is {given!r}, but must be {what}; leave it out for none")
        wanted[name] = amount
    gpus = wanted.get(GPU)
    if isinstance(gpus, int | float) and gpus > 1 and gpus % 1:
        raise UsageError(f"gpu is {gpus!r}: a task takes a fraction of one GPU, or whole GPUs")
    counted = amounts("resources", resources)
    if builtin := {MEMORY, CPUS, GPU} & counted.keys():
        raise UsageError(f"resources has {min(builtin)!r}, which is a separate option: {min(builtin)}=...")
    terms = {COUNTED: counted, LIMIT: amounts("limits", limits)}
    pairs = [(prefix + name, amount) for prefix, found in terms.items() for name, amount in found.items()]
    needs = Needs.of(wanted)
    return Needs(tuple(sorted([*needs.items, *pairs]))) if pairs else needs


def amounts(option: str, given: object) -> dict[str, float]:
    """Return the amounts of an option that is a dict, a list of names, or one name. Raises UsageError."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given or ()
    if not isinstance(names, Iterable):
        raise UsageError(f'{option} is {given!r}, but must be a dict such as {{"name": 1}}, or names')
    pairs = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, 1.0)
    for name, amount in pairs.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"{option} contains {name!r}: a name consists of letters, digits, '_', '.' and '-'")
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not 1 / UNITS_PER_ONE <= amount < math.inf:
            raise UsageError(f"{option}[{name!r}] is {amount!r}, but must be a number from {1 / UNITS_PER_ONE}")
    return {name: float(amount) for name, amount in pairs.items()}


def parse_capabilities(text: str) -> dict[str, float | None]:
    """Parse `linux,cpu=4,gpu=1`; a label's amount is None. Raises UsageError with the remedy."""
    found = parse_names(text, "capability", "name or name=number, such as linux,cpu=4,gpu=1")
    checked(found, 0.0)
    return found


def parse_names(text: str, what: str, form: str) -> dict[str, float | None]:
    """Parse names with amounts or None. what, form: name and form of an item, for the UsageError."""
    found: dict[str, float | None] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        name, separator, amount = (part.strip() for part in item.partition("="))
        if not NAME.fullmatch(name):
            raise UsageError(f"{what} {item!r}: write {form}")
        if name in found:
            raise UsageError(f"{what} {name!r} is given twice")
        if not separator:
            found[name] = None
            continue
        try:
            found[name] = parse_bytes(amount) if name == MEMORY and not amount[-1:].isdigit() else float(amount)
        except ValueError:
            raise UsageError(f"{what} {item!r}: {amount!r} is not a number") from None
    return found
