"""A FastAPI web server whose requests await tasks: while workers compute, it serves other requests.

Run as a program, it sends itself two requests and prints the responses. To serve until Ctrl-C, run `uvicorn
fastapi_server:app` in this directory. It uses the cluster at SCALER_ADDRESS, or else starts one.

Prints::

    {"below":10000,"primes":1229}
    4 25 168
"""

import asyncio
import contextlib
import socket
import urllib.request
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from scaler import AsyncClient


def count_primes(below: int) -> int:
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, below))


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/primes")
async def primes(below: int) -> dict[str, int]:
    return {"below": below, "primes": await app.state.client.submit(count_primes, below)}


@app.get("/table")
async def table(rows: int) -> StreamingResponse:
    counts = app.state.client.imap(count_primes, [10**row for row in range(1, rows + 1)])
    return StreamingResponse(f"{count} " async for count in counts)


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode().strip()


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    for path in ("primes?below=10000", "table?rows=3"):
        print(await asyncio.to_thread(get, f"http://127.0.0.1:{port}/{path}"))
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
