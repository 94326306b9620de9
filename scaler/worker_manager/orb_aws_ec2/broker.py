"""ORB's asynchronous client, in an event loop of one thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import TimeoutError as NoAnswerError
from pathlib import Path
from typing import Any

from scaler.errors import UsageError
from scaler.extras import require
from scaler.paths import local_path
from scaler.worker_manager.aws.calls import steady
from scaler.worker_manager.backend import BackendError

CALL_SECONDS = 120.0
"""Includes ORB's own retries at EC2 with their pauses."""

Fields = dict[str, Any]


class OrbError(BackendError):
    is_temporary = True


class OrbBroker:
    """ORB, opened at the first call, for any thread. Raises UsageError if it is not installed or initialised."""

    def __init__(self, config_path: str | None) -> None:
        """config_path: ORB's config.json; None: where `orb init` puts it."""
        require("orb", "orb", "a worker manager of the type orb_aws_ec2")
        from orb.config.platform_dirs import get_config_location  # noqa: PLC0415 (an extra)

        self._path = local_path(config_path) if config_path is not None else Path(get_config_location(), "config.json")
        if not self._path.is_file():
            raise UsageError(
                f"ORB is not initialised: there is no {self._path}; run `orb init`, or give orb_config the path of its "
                "config.json"
            )
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="orb", daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any, **named: Any) -> Fields:
        """Call a method of ORB's client; return its answer, or {}. Raises OrbError."""
        answer = asyncio.run_coroutine_threadsafe(self._call(method, arguments, named), self._loop)
        try:
            return answer.result(CALL_SECONDS) or {}
        except NoAnswerError:
            answer.cancel()
            raise OrbError(f"ORB {method}: no answer within {CALL_SECONDS:g} s") from None
        except Exception as error:  # its errors have no class in common
            text = steady(str(error)) or type(error).__name__
            raise OrbError(f"ORB {method} failed ({type(error).__name__}): {text}") from error

    def close(self) -> None:
        if self._client is not None:
            asyncio.run_coroutine_threadsafe(self._client.cleanup(), self._loop).result(CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _call(self, method: str, arguments: tuple[Any, ...], named: Fields) -> Fields | None:
        if self._client is None:
            self._client = await self._opened()
        found: Fields | None = await getattr(self._client, method)(*arguments, **named)
        return found

    async def _opened(self) -> Any:
        from orb.sdk import ORBClient  # noqa: PLC0415 (an extra, which takes seconds to import)

        # ORB takes the root logger for its own file, and the lines of this process would go there.
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            client = ORBClient(config_path=str(self._path))
            await client.initialize()
        finally:
            for handler in set(root.handlers) - set(handlers):
                handler.close()
            root.handlers[:] = handlers
            root.setLevel(level)
            logging.getLogger("orb").setLevel(logging.WARNING)
        return client
