"""Where objects are, and which store fetches what from which other one: see docs/design.md. Pure."""
