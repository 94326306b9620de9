"""Answers clients that ask what their functions have cost. Pure."""

from __future__ import annotations

import json
from heapq import nlargest

from scaler.policy.costs import CostShares
from scaler.protocol.messages import CostsFound, FindCosts
from scaler.scheduler.core.state import ClientRecord

MAX_ROWS = 1_000


def answer_costs(shares: CostShares, question: FindCosts, client: ClientRecord) -> CostsFound:
    """Return the largest shares of the client's key; an admin sees those of all keys."""
    may_see = client.identity.may_see
    seen = ((amount, payer) for payer, amount in shares.by_payer.items() if may_see(payer.key))
    found = nlargest(min(question.most, MAX_ROWS), seen)
    rows = [[payer.function, payer.client, payer.key, round(amount, 6)] for amount, payer in found]
    return CostsFound(question.most, json.dumps(rows).encode())
