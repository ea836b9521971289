"""python -m burnish, torchrun -m burnish: the command."""

from __future__ import annotations

import sys

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
