"""Several late GPUs, and process groups for arrays in their memory."""

import threading
import time
from functools import partial

from support.runs.loopback import make_groups

PATIENCE_SECONDS = 30.0


class LateGpus:
    """Several late GPUs. A collective is part of a stream's work, and a real GPU reaches it regardless of what the host
    waits for. So when one of these GPUs has reached a collective, the others work until they have reached it, too."""

    def __init__(self, devices):
        self.devices = devices

    def groups(self):
        groups = make_groups(len(self.devices))
        begun = [0] * len(groups)
        for rank, group in enumerate(groups):
            group._start = partial(self._start, group._start, begun, rank)
        return groups

    def _start(self, start, begun, rank, *collective):
        begun[rank] += 1
        number, arrived = begun[rank], start(*collective)

        def met():
            for other, device in enumerate(self.devices):
                if begun[other] < number:
                    threading.Thread(target=come, args=(device, begun, other, number), daemon=True).start()
            arrived()

        return met


def come(device, begun, rank, number):
    """Do the current and future work of the stream `train`, up to the collective with this number."""
    until = time.monotonic() + PATIENCE_SECONDS
    while begun[rank] < number and device.error is None and time.monotonic() < until:
        with device.lock:
            if device.train.todo and begun[rank] < number:
                device.step_alone(device.train)
                continue
        time.sleep(0.001)
