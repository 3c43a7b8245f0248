"""Start of recording in processes that tests start: Python imports this module first, if it is on the path."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import error_sites

error_sites.record(Path(os.environ["RECORD_MESSAGES"]))
