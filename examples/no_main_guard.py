"""Write a program without `if __name__ == "__main__"`: unlike multiprocessing, workers do not run the program again.

The parts of the program that a task uses (functions, classes, constants) are sent with it, even from a notebook.

Prints::

    this line is printed once
    Celsius(degrees=21.0)
"""

from dataclasses import dataclass

from scaler import Client

print("this line is printed once")

ZERO_FAHRENHEIT = 32


@dataclass
class Celsius:
    degrees: float


def convert(fahrenheit):
    return Celsius(round((fahrenheit - ZERO_FAHRENHEIT) / 1.8, 1))


client = Client()  # starts a cluster on this machine that ends with the program
print(client.submit(convert, 69.8).result())
