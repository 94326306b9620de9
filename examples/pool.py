"""Run code written for `multiprocessing.Pool` on a cluster, with an initializer for each process.

Prints::

    in dollars: [5.0, 10.0, 20.0]
    first value: 5.0
    called back with: 2.5
    unknown: KeyError('CHF')
"""

from scaler import Pool

rates = {}


def load(table):
    rates.update(table)


def convert(currency, amount):
    return amount * rates[currency]


def in_dollars(bill):
    return convert(*bill)


with Pool(2, load, [{"EUR": 1.25, "GBP": 2.5}]) as pool:
    bills = [("EUR", 4), ("GBP", 4), ("GBP", 8)]
    print("in dollars:", pool.starmap(convert, bills))
    print("first value:", next(pool.imap(in_dollars, bills)))
    pool.apply_async(convert, ("GBP", 1), callback=lambda value: print("called back with:", value)).wait()
    unknown = pool.apply_async(convert, ("CHF", 1))
    try:
        unknown.get(timeout=30)
    except KeyError as error:
        print("unknown:", repr(error))
