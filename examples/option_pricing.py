"""Price an Asian call option by Monte Carlo simulation: random paths in batches, on any number of workers.

Each batch has a separate random stream, spawned from one seed, so the price does not depend on the number of workers or
on batches that run again.

Prints::

    400,000 paths in 40 batches
    price 5.8..., standard error 0.01..., the European call costs more: True
"""

import math
from dataclasses import dataclass

import numpy

from scaler import Client, SchedulerClusterCombo


@dataclass(frozen=True)
class Market:
    spot: float
    rate: float
    volatility: float


@dataclass(frozen=True)
class AsianCall:
    strike: float
    years: float
    fixings: int


def simulate(market: Market, option: AsianCall, seed: numpy.random.SeedSequence, paths: int) -> tuple[float, float]:
    """Return the sum and the sum of squares of the discounted payoffs."""
    step = option.years / option.fixings
    drift = (market.rate - market.volatility**2 / 2) * step
    shocks = numpy.random.default_rng(seed).standard_normal((paths, option.fixings))
    logs = numpy.cumsum(drift + market.volatility * math.sqrt(step) * shocks, axis=1)
    averages = market.spot * numpy.exp(logs).mean(axis=1)
    payoffs = math.exp(-market.rate * option.years) * numpy.maximum(averages - option.strike, 0)
    return float(payoffs.sum()), float((payoffs**2).sum())


def european_call(market: Market, option: AsianCall) -> float:
    """Return the Black-Scholes price of the European call, which costs more because it does not average."""
    spread = market.volatility * math.sqrt(option.years)
    d1 = math.log(market.spot / option.strike) / spread + (market.rate / market.volatility**2 + 0.5) * spread
    normal = [math.erfc(-d / math.sqrt(2)) / 2 for d in (d1, d1 - spread)]
    return market.spot * normal[0] - option.strike * math.exp(-market.rate * option.years) * normal[1]


BATCHES, PATHS = 40, 10_000
market = Market(spot=100.0, rate=0.05, volatility=0.2)
option = AsianCall(strike=100.0, years=1.0, fixings=50)
seeds = numpy.random.SeedSequence(2024).spawn(BATCHES)

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    sums = client.starmap(simulate, [(market, option, seed, PATHS) for seed in seeds])

count = BATCHES * PATHS
price = math.fsum(first for first, _ in sums) / count
variance = math.fsum(second for _, second in sums) / count - price**2
print(f"{count:,} paths in {BATCHES} batches")
print(
    f"price {price:.3f}, standard error {math.sqrt(variance / count):.4f}, "
    f"the European call costs more: {european_call(market, option) > price}"
)
