"""Exact training of one run, torch only: strategies, loop, evaluation, checkpoints. No ray, no SQLite."""
