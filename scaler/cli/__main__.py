"""`python -m scaler.cli COMMAND ...`: the commands without their scripts, for processes that start components."""

from __future__ import annotations

import sys

from scaler.cli import main

sys.exit(main(sys.argv[1:]))
