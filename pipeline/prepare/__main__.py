"""Entry point of `python -m pipeline.prepare`; the command itself is in main.py."""

import os
import sys

from pipeline.prepare.main import main

if __name__ == "__main__":
    code = main()
    try:
        sys.stdout.flush()
    except OSError:
        # The reader of stdout has gone. Flushing the rest at Python's exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
