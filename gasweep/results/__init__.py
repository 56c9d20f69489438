"""Records, run states and the journal. May import batching and analysis."""
