"""The same bits for every factorisation of one effective batch: grains, integer sums, keyed randomness.

May import torch, batching, data, tasks and its sibling modules of training; nothing above training.
"""
