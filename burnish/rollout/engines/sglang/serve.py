"""Start SGLang's server: `python -m burnish.rollout.engines.sglang.serve ARGUMENTS`, with its key in the environment.

SGLang takes a key as an argument only. It becomes one here, inside the process, because every user of the machine can
read the command lines of others. Processes that SGLang spawns run this file as their main module too, so their process
groups meet in private files.
"""

from __future__ import annotations

import os
import runpy
import sys

from burnish.rollout.engines.private import KEY_VARIABLE, use_private_stores


def main() -> None:
    sys.argv = [*sys.argv, "--api-key", os.environ[KEY_VARIABLE]]
    runpy.run_module("sglang.launch_server", run_name="__main__")


if __name__ in ("__main__", "__mp_main__"):
    use_private_stores()
if __name__ == "__main__":
    main()
