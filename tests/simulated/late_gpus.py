"""Several late GPUs, and the groups of what lies in their memory."""

import threading
import time
from functools import partial

from loopback import make_groups

PATIENCE_SECONDS = 30.0


class LateGpus:
    """A collective is work of a stream, and a real GPU comes to it by itself, whatever its host waits for. So where one
    of these has come to a collective, the others go on until they have, too."""

    def __init__(self, devices):
        self.devices = devices

    def groups(self):
        groups = make_groups(len(self.devices))
        begun = [0] * len(groups)
        for rank, group in enumerate(groups):
            group._wait = partial(self._meet, group._wait, begun, rank)
        return groups

    def _meet(self, wait, begun, rank, *collective):
        begun[rank] += 1
        for other, device in enumerate(self.devices):
            if begun[other] < begun[rank]:
                threading.Thread(target=come, args=(device, begun, other, begun[rank]), daemon=True).start()
        wait(*collective)


def come(device, begun, rank, number):
    """Do what the stream `train` was given, or is going to be, up to that collective."""
    until = time.monotonic() + PATIENCE_SECONDS
    while begun[rank] < number and device.error is None and time.monotonic() < until:
        with device.lock:
            if device.train.todo and begun[rank] < number:
                device.step_alone(device.train)
                continue
        time.sleep(0.001)
