"""Submit any callable. It is sent to the worker together with everything that it refers to.

Prints::

    function: 21.0
    lambda: 70.0
    closure: 33.0
    partial: 0b101010
    bound method: 121.0
    object that can be called: 40.0
    class: Account(balance=100.0)
    builtin: 2.0
    keyword arguments: 1,234.50 EUR
"""

import functools
import math
from dataclasses import dataclass

from scaler import Client, SchedulerClusterCombo


def celsius(fahrenheit):
    return round((fahrenheit - 32) / 1.8, 1)


def with_tax(rate):
    def gross(net):
        return net * (1 + rate)

    return gross


@dataclass
class Account:
    balance: float

    def after_interest(self, rate, *, years=1):
        return round(self.balance * (1 + rate) ** years, 2)


class Discount:
    def __init__(self, share):
        self.share = share

    def __call__(self, price):
        return price * (1 - self.share)


def show(amount, /, *, currency, digits=2):
    return f"{amount:,.{digits}f} {currency}"


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    futures = {
        "function": client.submit(celsius, 69.8),
        "lambda": client.submit(lambda width, height: width * height, 7.0, 10.0),
        "closure": client.submit(with_tax(0.5), 22),
        "partial": client.submit(functools.partial(format, 42), "#b"),
        "bound method": client.submit(Account(100.0).after_interest, 0.1, years=2),
        "object that can be called": client.submit(Discount(0.5), 80),
        "class": client.submit(Account, 100.0),
        "builtin": client.submit(math.log10, 100),
        "keyword arguments": client.submit(show, 1234.5, currency="EUR"),
    }
    for kind, future in futures.items():
        print(f"{kind}: {future.result()}")
