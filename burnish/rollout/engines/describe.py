"""Write what an engine's library is into a file: `python -m burnish.rollout.engines.describe vllm FILE`.

Run by the Python that has the library. A file, because libraries print while they are imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(name: str, file: str) -> None:
    library = importlib.import_module(f"burnish.rollout.engines.{name}.library")
    Path(file).write_text(json.dumps(library.description()))


if __name__ == "__main__":
    main(*sys.argv[1:])
