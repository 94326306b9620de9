"""An append-only journal that lets a restarted server recover its state."""
