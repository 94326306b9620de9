"""Keep an asyncio program responsive: run expensive functions on workers with run_in_executor.

Prints::

    3 passwords hashed, the loop kept running: True
    ['94b8853c', '14789923', '6b33b123']
"""

import asyncio
import hashlib

from scaler import ScalerExecutor, SchedulerClusterCombo


def hashed(password, salt="examples"):
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), 50_000).hex()[:8]


async def handle(executor, password):
    return await asyncio.get_running_loop().run_in_executor(executor, hashed, password)


async def main(executor):
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    hashes = await asyncio.gather(*(handle(executor, password) for password in ("owl", "fox", "elk")))
    counting.cancel()
    print(f"{len(hashes)} passwords hashed, the loop kept running: {turns > 1}")
    print(hashes)


with SchedulerClusterCombo(n_workers=2) as cluster, ScalerExecutor(address=cluster.get_address()) as executor:
    asyncio.run(main(executor))
