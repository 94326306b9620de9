"""Monitoring for people: one model folded from the scheduler's reports, and the views that read the model."""
