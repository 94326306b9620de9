"""Locations of objects, and transfers between stores; see docs/design.md. Pure."""
