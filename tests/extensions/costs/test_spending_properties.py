"""No policy exceeds the limit by more than one minimum charge per unit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler.extensions.costs.core import LEAST_SECONDS, SpendingLedger
from scaler.needs import Offers
from scaler.policy.view import ClusterView, ManagerView, Wanted

STEP_SECONDS = 20.0
PRICES = st.sampled_from([0.0, 0.3, 2.0, 60.0])


@given(
    st.lists(st.tuples(PRICES, st.sampled_from([0.0, 60.0, 300.0])), min_size=1, max_size=3),
    st.floats(0.05, 20.0),
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=40),
)
def test_spending_exceeds_the_limit_by_at_most_minimum_charges(
    kinds: list[tuple[float, float]], limit: float, answers: list[list[int]]
) -> None:
    ledger = SpendingLedger({"run": limit, "hour": 2 * limit}, 0.0)
    alive: list[dict[str, float]] = [{} for _ in kinds]
    count, now, wanted = 0, 0.0, dict[str, Wanted]()

    def views() -> list[ManagerView]:
        return [
            ManagerView(
                str(place),
                "",
                Offers(),
                len(alive[place]),
                max_slots=-1,
                unit_slots=1,
                unit_price=price,
                unit_minimum_seconds=least,
            )
            for place, (price, least) in enumerate(kinds)
        ]

    for answer in answers:
        now += STEP_SECONDS
        before = ledger.run
        for place, (price, least) in enumerate(kinds):
            for unit, since in alive[place].items():
                ledger.charge_unit(str(place), unit, now - since, now, price=price, minimum_seconds=least)
        charges = [
            price / 3600 * max(least, LEAST_SECONDS) * len(alive[place]) for place, (price, least) in enumerate(kinds)
        ]
        assert ledger.run == before or ledger.run <= limit + sum(charges) + 1e-6
        ledger.check(now)
        wanted = {str(place): Wanted(units, "so it wants") for place, units in enumerate(answer[: len(kinds)])}
        decided, _ = ledger.limited(views(), wanted, now)
        for view in ledger.affordable(ClusterView(now, (), tuple(views()))).managers:
            most, given_ = view.max_units, decided[view.manager_id].units
            assert most is None or given_ <= most
        for place, (price, _) in enumerate(kinds):
            units = decided[str(place)].units
            assert price or units == answer[place], "units that cost nothing are the policy's business"
            if ledger.run >= limit:
                assert not (price and units), "at the limit, no paid unit stays"
            while len(alive[place]) > units:
                alive[place].popitem()
            while len(alive[place]) < units:
                count += 1
                alive[place][f"u{count}"] = now
