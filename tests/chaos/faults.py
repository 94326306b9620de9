"""The fault script: kinds and times of faults, from a seed. Pure; `conductor` performs it.

for fault in script(seed=7, seconds=1800, kinds=KINDS): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

WORKER_LEASE_SECONDS, CLIENT_LEASE_SECONDS = 12.0, 24.0
"""Leases of clusters in chaos runs: short, so that many expire."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. seconds: possible durations, or empty for an instantaneous fault."""

    name: str
    targets: tuple[str, ...]
    weight: float
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. pick: chooses among the target's processes when the fault is due."""

    at: float
    kind: str
    target: str
    seconds: float
    pick: float

    def __str__(self) -> str:
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind} {self.target}{lasting}"


EVERY_SECONDS = 3.0
SHORT, LONG = (0.2, 1.0, 4.0), (WORKER_LEASE_SECONDS + 6.0,)
LONGEST = (CLIENT_LEASE_SECONDS + 6.0,)
WORKERS = ("agent", "fork server", "processor")
SERVERS = ("scheduler", "object storage")
STORE_PROXY = "proxy of a store"
PROXIES = ("proxy of the scheduler", "proxy of the object storage", STORE_PROXY)

KINDS = (
    Kind("kill", WORKERS, 6.0),
    Kind("kill", ("store", "store", "store and agent"), 2.0),
    Kind("kill", ("manager", "page", "client"), 2.0),
    Kind("kill", SERVERS, 2.0),
    Kind("kill", ("scheduler and object storage",), 1.0),
    Kind("stop", (*WORKERS, "store", "manager", "page", "client"), 3.0, SHORT),
    Kind("stop", SERVERS, 1.5, SHORT),
    Kind("long stop", ("agent", "processor", "store", "client"), 1.0, LONG),
    Kind("longest stop", ("client", *SERVERS), 0.5, LONGEST),
    Kind("long stop", SERVERS, 0.5, LONG),
    Kind("kill", ("launcher",), 0.5),
    Kind("terminate", ("agent", "store"), 1.0),
    Kind("remove", ("file of a store",), 0.5),
    Kind("reset", PROXIES, 3.0),
    Kind("half-open", PROXIES, 2.0),
    Kind("reorder", PROXIES, 2.0),
    Kind("black hole", PROXIES, 1.0, (1.0, 5.0)),
    Kind("long black hole", PROXIES, 0.5, LONG),
    Kind("delay", PROXIES, 1.0, (3.0, 8.0)),
    Kind("clock jump", ("all",), 1.0, (5.0,)),
    Kind("no descriptors", (*SERVERS, "agent", "store", "manager"), 1.0, (2.0, 6.0)),
    Kind("full disk", ("all",), 1.0, (5.0,)),
    Kind("revoke key", ("client",), 0.5),
)


def kinds_without(targets: Sequence[str]) -> tuple[Kind, ...]:
    """Return KINDS without these targets: `kill scheduler` excludes one kind of fault, `scheduler` all."""
    found = []
    for kind in KINDS:
        left = tuple(each for each in kind.targets if not {each, kind.name, f"{kind.name} {each}"} & set(targets))
        if left:
            found.append(Kind(kind.name, left, kind.weight, kind.seconds))
    return tuple(found)


def script(
    seed: int, seconds: float, kinds: Sequence[Kind], every_seconds: float = EVERY_SECONDS, first: float = 2.0
) -> Iterator[Fault]:
    """Yield the faults in order of time, until `seconds`. every_seconds: mean interval between faults."""
    random = Random(seed)
    weights = [kind.weight for kind in kinds]
    at = first
    while at < seconds:
        (kind,) = random.choices(kinds, weights)
        lasts = random.choice(kind.seconds) if kind.seconds else 0.0
        yield Fault(at, kind.name, random.choice(kind.targets), lasts, random.random())
        at += random.expovariate(1 / every_seconds)
