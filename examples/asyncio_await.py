"""Await futures in asyncio: one, several with gather, with a time limit, or as they complete.

Cancelling the asyncio task that awaits a future also cancels the future. Scaler tasks can run their own event loop and
await tasks that they submit.

Prints::

    1 word
    [2, 3, 5]
    too late, and cancelled
    10
"""

import asyncio
import threading

from scaler import Client, SchedulerClusterCombo


def count_words(text):
    return len(text.split())


def count_forever():
    threading.Event().wait()


def count_all(texts):
    """Runs in a worker, with its own event loop and client."""

    async def gather():
        client = Client()
        return sum(await asyncio.gather(*(client.submit(count_words, text) for text in texts)))

    return asyncio.run(gather())


async def main(address):
    with Client(address=address) as client:
        print(await client.submit(count_words, "hello"), "word")

        texts = ["to be", "or not to", "be that is the question"]
        print(await asyncio.gather(*(client.submit(count_words, text) for text in texts)))

        future = client.submit(count_forever)
        try:
            async with asyncio.timeout(0.3):
                await future
        except TimeoutError:
            print("too late, and", "cancelled" if future.cancelled() else "still running")

        print(await client.submit(count_all, texts))


with SchedulerClusterCombo(n_workers=1) as cluster:
    asyncio.run(main(cluster.get_address()))
