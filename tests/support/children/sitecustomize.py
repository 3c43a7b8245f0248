"""What Python imports first in the processes that tests start while messages are recorded."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import error_sites

error_sites.record(Path(os.environ["RECORD_MESSAGES"]))
