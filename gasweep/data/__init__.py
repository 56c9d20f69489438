"""Named RNG streams, the index stream and its partition. May import layers 1 and 2."""

from gasweep.data.index_stream import IndexStream, Indices
from gasweep.data.streams import derive_seed

__all__ = ["IndexStream", "Indices", "derive_seed"]
