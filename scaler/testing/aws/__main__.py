"""`python -m scaler.testing.aws [--port N]`: run the emulator alone until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from scaler.testing.aws.server import AwsEmulator


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scaler.testing.aws", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        emulator = AwsEmulator(port=arguments.port)
    except (OSError, OverflowError) as error:
        parser.error(f"cannot serve on port {arguments.port}: {error}; take another one with --port")
    with emulator:
        sys.stdout.write(f"{emulator.endpoint_url}\n")
        sys.stdout.flush()
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
