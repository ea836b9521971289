"""Importing the config is free."""

import subprocess
import sys


def test_no_torch():
    code = (
        "import sys, burnish.config, burnish.config.explain, burnish.config.keys_doc\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
