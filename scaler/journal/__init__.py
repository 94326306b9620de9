"""An append-only journal, from which a restarted server recovers its state."""
