"""How much memory a run needs: the largest micro-batch that fits, and a prediction before running."""
