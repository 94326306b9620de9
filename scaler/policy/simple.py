"""The policy `simple`: `allocate=even_load|capability; scaling=no|vanilla|capability`.

scaling=no: nothing is started and nothing is stopped; fixed worker managers provide what they are configured to.
scaling=vanilla: every manager that can run the work may grow, the one that came first before the others.
scaling=capability: the same, but the manager with the fewest capabilities that the work does not need comes first, so
plain tasks do not start machines with a gpu while others may grow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from scaler.errors import UsageError
from scaler.needs import Needs
from scaler.policy.load import unknown
from scaler.policy.sizing import Choice, Sizing
from scaler.policy.view import Allocation, ClusterView, Wanted
from scaler.policy.work import demanded


class Allocate(StrEnum):
    EVEN_LOAD = "even_load"
    CAPABILITY = "capability"


class Scaling(StrEnum):
    NO = "no"
    VANILLA = "vanilla"
    CAPABILITY = "capability"


class SimplePolicy:
    """See the module. Raises UsageError on content that it does not understand."""

    def __init__(self, policy_content: str) -> None:
        allocate, self._scaling = parse(policy_content)
        self.allocation = Allocation(prefer_least_capable=allocate is Allocate.CAPABILITY)
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        match self._scaling:
            case Scaling.NO:
                return {
                    manager.manager_id: Wanted(manager.units, "the policy says scaling=no")
                    for manager in view.managers
                    if not manager.fixed
                }
            case Scaling.VANILLA:
                return self._sizing.plan(view, {needs: _fitting(needs, view) for needs in demanded(view)})
            case Scaling.CAPABILITY:
                return self._sizing.plan(
                    view,
                    {
                        needs: sorted(_fitting(needs, view), key=lambda choice: len(choice.manager.offers.items))
                        for needs in demanded(view)
                    },
                )
            case never:
                assert_never(never)


def parse(policy_content: str) -> tuple[Allocate, Scaling]:
    """Return what the content says; what it leaves out is even_load and vanilla. Raises UsageError."""
    given: dict[str, str] = {}
    for part in (part.strip() for part in policy_content.replace("\n", ";").split(";")):
        if not part:
            continue
        key, separator, value = (text.strip() for text in part.partition("="))
        if not separator:
            raise UsageError(f"policy_content {part!r}: write key=value, such as allocate=even_load; scaling=vanilla")
        if key not in ("allocate", "scaling"):
            raise UsageError(unknown("policy_content: key", key, ("allocate", "scaling")))
        if key in given:
            raise UsageError(f"policy_content: {key!r} is given twice")
        given[key] = value
    allocate = given.get("allocate", Allocate.EVEN_LOAD.value)
    scaling = given.get("scaling", Scaling.VANILLA.value)
    if allocate not in list(Allocate):
        raise UsageError(unknown("policy_content: allocate", allocate, list(Allocate)))
    if scaling not in list(Scaling):
        raise UsageError(unknown("policy_content: scaling", scaling, list(Scaling)))
    return Allocate(allocate), Scaling(scaling)


def _fitting(needs: Needs, view: ClusterView) -> list[Choice]:
    return [Choice(manager, manager.max_units) for manager in view.managers if needs.fits(manager.offers)]
