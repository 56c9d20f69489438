"""`python -m gasweep` is `gasweep`."""

from __future__ import annotations

import sys

from gasweep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
