"""Named RNG streams, the index stream and its partition. May import layers 1 and 2."""
