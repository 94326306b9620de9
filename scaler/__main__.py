"""`python -m scaler ...`: the same as the command `scaler`."""

from __future__ import annotations

import sys

from scaler.cli import run_command

sys.exit(run_command("scaler", sys.argv[1:]))
