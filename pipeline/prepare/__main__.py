"""`python -m pipeline.prepare`, whose command line is in main.py."""

import os
import sys

from pipeline.prepare.main import main

if __name__ == "__main__":
    code = main()
    try:
        sys.stdout.flush()
    except OSError:
        # Nobody reads on. What is still buffered would be a traceback when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
