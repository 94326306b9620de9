"""Write a program without `if __name__ == "__main__"`: workers do not run it again, unlike those of multiprocessing.

What a task uses of the program (functions, classes, constants) travels with it, so that a notebook works as well.

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


client = Client()  # starts a cluster on this machine, which ends with the program
print(client.submit(convert, 69.8).result())
