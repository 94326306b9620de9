"""The default policy, `simple`. Pure."""

from __future__ import annotations

from scaler.errors import UsageError
from scaler.policy.load import entries, key_value, unknown
from scaler.policy.sizing import Sizing
from scaler.policy.view import Allocation, ClusterView, Wanted

CHOICES = {"allocate": ("even_load", "capability"), "scaling": ("no", "vanilla", "capability")}


class SimplePolicy:
    """`allocate=even_load|capability; scaling=no|vanilla|capability`.

    scaling=no: no units are started or stopped; fixed managers provide their configured units. scaling=vanilla: any
    manager that can run the work may grow, in order of connection. scaling=capability: managers with fewer capabilities
    grow first, so that plain tasks do not start GPU machines while other managers may grow.
    """

    def __init__(self, policy_content: str) -> None:
        allocate, self._scaling = _parse(policy_content)
        self.allocation = Allocation(prefer_least_capable=allocate == "capability")
        self._sizing = Sizing()

    def plan(self, view: ClusterView) -> dict[str, Wanted]:
        if self._scaling == "no":
            return {
                manager.manager_id: Wanted(manager.units, "scaling=no", manager.units)
                for manager in view.managers
                if not manager.fixed
            }
        managers = list(view.managers)
        if self._scaling == "capability":
            managers.sort(key=lambda manager: len(manager.offers.items))
        return self._sizing.plan(view, {manager.manager_id: manager.max_units for manager in managers})


def _parse(policy_content: str) -> tuple[str, str]:
    given: dict[str, str] = {"allocate": "even_load", "scaling": "vanilla"}
    seen: set[str] = set()
    for entry in entries(policy_content):
        prefix, key, value = key_value(entry, given, "allocate=even_load; scaling=vanilla")
        if prefix:
            raise UsageError(unknown("policy_content: key", f"{prefix}.{key}", given))
        if key in seen:
            raise UsageError(f"policy_content: {key!r} is given twice")
        seen.add(key)
        given[key] = value
    for key, values in CHOICES.items():
        if given[key] not in values:
            raise UsageError(unknown(f"policy_content: {key}", given[key], values))
    return given["allocate"], given["scaling"]
