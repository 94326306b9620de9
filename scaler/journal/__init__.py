"""An append-only journal: what a restarted server needs to continue where it stopped."""
