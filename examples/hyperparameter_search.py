"""Search for a model's best settings: the data is sent once, and every combination of settings is a task.

Prints::

    tried 12 settings
    best: degree 3, penalty 0.01, error 0.1...
"""

import itertools
from concurrent.futures import as_completed

import numpy

from scaler import Client, SchedulerClusterCombo


def features(x, degree):
    return numpy.vander(x, degree + 1, increasing=True)


def validation_error(data, degree, penalty):
    """Fit a polynomial to one half of the data, and return its error on the other half."""
    x, y = data
    train, test = slice(0, None, 2), slice(1, None, 2)
    matrix = features(x[train], degree)
    weights = numpy.linalg.solve(matrix.T @ matrix + penalty * numpy.eye(degree + 1), matrix.T @ y[train])
    return float(numpy.sqrt(numpy.mean((features(x[test], degree) @ weights - y[test]) ** 2)))


random = numpy.random.default_rng(seed=7)
x = numpy.linspace(-1, 1, 2_000)
y = 2 * x**3 - x + 0.1 * random.standard_normal(x.size)

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    data = client.send_object((x, y), name="measurements")
    settings = {
        client.submit(validation_error, data, degree, penalty): (degree, penalty)
        for degree, penalty in itertools.product([1, 2, 3, 9], [0.01, 1.0, 100.0])
    }
    errors = {settings[future]: future.result() for future in as_completed(settings, timeout=30)}

degree, penalty = min(errors, key=errors.__getitem__)
print(f"tried {len(errors)} settings")
print(f"best: degree {degree}, penalty {penalty}, error {errors[degree, penalty]:.3f}")
