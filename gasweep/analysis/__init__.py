"""Estimators: noise scale, steps to target, critical batch size, joins. Imports numpy and scipy only."""
