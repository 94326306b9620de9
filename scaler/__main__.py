"""`python -m scaler ...`: the same as the command `scaler`."""

import sys

from scaler.cli import run_command

sys.exit(run_command("scaler", sys.argv[1:]))
