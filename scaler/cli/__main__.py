"""`python -m scaler.cli COMMAND ...`: the commands without their scripts, for processes that start components."""

import sys

from scaler.cli import main

sys.exit(main(sys.argv[1:]))
