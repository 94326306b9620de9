"""Reports of a scheduler for monitors, and answers to questions about its state. Made in the scheduler's process."""
