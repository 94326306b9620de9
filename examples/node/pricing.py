"""Functions for the workers: any Python code whose arguments and results JSON can represent."""

from math import exp, log, sqrt
from statistics import NormalDist


def call_price(
    strike: float, spot: float = 100.0, years: float = 1.0, rate: float = 0.02, volatility: float = 0.2
) -> float:
    """Return the Black-Scholes price of a European call."""
    if strike <= 0:
        raise ValueError(f"a strike is above 0, and not {strike}")
    spread = volatility * sqrt(years)
    first = (log(spot / strike) + (rate + volatility**2 / 2) * years) / spread
    normal = NormalDist().cdf
    return spot * normal(first) - strike * exp(-rate * years) * normal(first - spread)
