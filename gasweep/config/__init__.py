"""The config schema, its loading, the grid and its factorisation, run ids. May import batching."""
