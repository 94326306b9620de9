"""`scaler promote`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence

from scaler.config.flags import bare_parser
from scaler.errors import RefusedError, UnreachableError
from scaler.extensions.standby.messages import Promote, Promoted
from scaler.extensions.standby.term import connected
from scaler.net.access import Access
from scaler.net.connection import ConnectionRefused, Received, Welcomed
from scaler.net.versions import own_hello
from scaler.protocol.messages import ClientDetails, Role, Unanswered
from scaler.security import CREDENTIALS_VARIABLE

CONNECT_SECONDS, TIMEOUT_SECONDS = 10.0, 60.0


def promote(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Promote a standby, and print the time until it serves. Raises UsageError, RefusedError, and UnreachableError."""
    parser = bare_parser(program, "Make a standby the scheduler. The current scheduler, if it runs, stops serving.")
    parser.add_argument("address", metavar="ADDRESS", help="of the standby")
    parser.add_argument("--force", action="store_true", help="promote even if acknowledged tasks may be lost")
    text = f"an admin's credential file [default: {CREDENTIALS_VARIABLE}, or none on the standby's machine]"
    parser.add_argument("--credentials", metavar="FILE", help=text)
    given = parser.parse_args(arguments)
    access = Access.of(given.credentials or environment.get(CREDENTIALS_VARIABLE) or None, False, Role.ADMIN, "promote")
    seconds, epoch = asyncio.run(take_over(given.address, access, force=given.force))
    sys.stdout.write(f"{given.address} is the scheduler now (epoch {epoch}), after {seconds:.2f} s\n")
    return 0


async def take_over(address: str, access: Access, *, force: bool) -> tuple[float, int]:
    """Return the seconds until the standby serves, and its epoch."""
    epoch, began = 0, time.monotonic()
    connector, events = connected(address, access, own_hello(Role.ADMIN, ClientDetails("promote")))
    try:
        async with asyncio.timeout(CONNECT_SECONDS) as limit:
            while True:
                match await events.get():
                    case Welcomed(welcome) if epoch and welcome.epoch >= epoch:
                        return time.monotonic() - began, epoch
                    case Welcomed() if not epoch:
                        limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT_SECONDS)
                        connector.send(Promote(force, number=1))
                    case Received(message=Promoted(promoted, refused)) if not refused:
                        epoch = promoted
                    case Received(message=Promoted(refused=text) | Unanswered(text)):
                        raise RefusedError(f"{address} is not promoted: {text}")
                    case ConnectionRefused(refused):
                        raise RefusedError(f"{address} refused this command: {refused.text}")
    except TimeoutError:
        what = "was promoted but does not serve yet: see its log" if epoch else "does not answer"
        raise UnreachableError(f"{address} {what} ({connector.last_error})") from None
    finally:
        connector.close()
