"""Trackers: where measurements are mirrored (W&B, nowhere)."""
