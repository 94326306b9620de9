"""Use a client from asyncio: no call blocks the event loop, and `async for` iterates over results.

Prints::

    1024
    [1, 4, 9]
    [16, 25]
    65536
    fast
"""

import asyncio
import time

from scaler import AsyncClient, SchedulerClusterCombo


def square(number):
    return number * number


def wait_and_say(seconds, text):
    time.sleep(seconds)
    return text


async def main(address):
    async with AsyncClient(address) as client:
        print(await client.submit(pow, 2, 10))

        print(await client.map(square, [1, 2, 3]))
        print([result async for result in client.imap(square, [4, 5])])

        ending = client.as_completed([client.submit(square, 2)])
        async for future in ending:
            if await future < 1000:
                ending.add(client.submit(square, await future))
        print(await future)

        racing = [client.submit(wait_and_say, 0, "fast"), client.submit(wait_and_say, 600, "slow")]
        async for future in client.as_completed(racing):
            print(await future)
            break  # closing the client cancels the other task


with SchedulerClusterCombo(n_workers=2) as cluster:
    asyncio.run(main(cluster.get_address()))
