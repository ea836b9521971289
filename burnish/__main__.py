"""The `burnish` command, python -m burnish, torchrun -m burnish."""

from __future__ import annotations

import signal
import sys

# Until main() handles it, Ctrl-C ends the process without a traceback of the imports. Background jobs ignore it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
