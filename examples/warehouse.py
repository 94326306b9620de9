"""A user's module that workers load in preload.py. They find it in the program's directory."""

PRICES = {}


def load(currency, *, discount=0.0):
    """Simulates slow setup that every task needs: a model, a table, a connection."""
    for name, amount in {"apple": 1.0, "pear": 2.0}.items():
        PRICES[name] = f"{amount * (1 - discount):.2f} {currency}"


def price(name):
    return PRICES[name]
