"""The shipped tasks' torch modules: the only files of `tasks` that import torch at import time."""
