"""Data-parallel strategies, one per file, behind one contract. May import torch and layers 1 to 3."""
