"""Share a large array: it is sent once, without copying its bytes on their way into the object storage.

The storage also keeps large results until a client requests them. Here, the client fetches only the sums.

Prints::

    <ObjectReference 'image' 8,000,... B>
    mean brightness: 0.50
    brightest row: 765
    blurred: (1000, 1000), mean 0.50
"""

import numpy

from scaler import Client, SchedulerClusterCombo


def mean_of_rows(image, rows):
    return image[rows].mean()


def blurred(image):
    return (image + numpy.roll(image, 1, axis=0) + numpy.roll(image, -1, axis=0)) / 3


def summary(image):
    return f"{image.shape}, mean {image.mean():.2f}"


image = numpy.random.default_rng(seed=1).random((1000, 1000))
image[765] = 1.0

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    reference = client.send_object(image, name="image")
    print(reference)

    parts = [slice(start, start + 250) for start in range(0, 1000, 250)]
    means = [client.submit(mean_of_rows, reference, rows) for rows in parts]
    print(f"mean brightness: {sum(future.result() for future in means) / len(means):.2f}")
    print("brightest row:", client.submit(lambda image: image.sum(axis=1).argmax(), reference).result())

    result = client.submit(blurred, reference)  # 8 MB, passed from worker to worker
    print("blurred:", client.submit(summary, result).result())
