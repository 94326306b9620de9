"""What the workers import: any Python, with values that JSON knows."""

from math import exp, log, sqrt
from statistics import NormalDist


def call_price(
    strike: float, spot: float = 100.0, years: float = 1.0, rate: float = 0.02, volatility: float = 0.2
) -> float:
    """Return the price of a European call by the formula of Black and Scholes."""
    if strike <= 0:
        raise ValueError(f"a strike is above 0, and not {strike}")
    spread = volatility * sqrt(years)
    first = (log(spot / strike) + (rate + volatility**2 / 2) * years) / spread
    normal = NormalDist().cdf
    return spot * normal(first) - strike * exp(-rate * years) * normal(first - spread)
