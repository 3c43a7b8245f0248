"""One opening of a servable, in a separate process, as the server does it. Prints the seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pipeline.serving.http.answer import probe
from pipeline.serving.served_model import open_served


def main() -> None:
    folder, memory_bytes = Path(sys.argv[1]), int(sys.argv[2])
    begun = time.perf_counter()
    served = open_served(folder, memory_bytes, None, None)
    probe(served)
    print(time.perf_counter() - begun)
    served.close()


if __name__ == "__main__":
    main()
