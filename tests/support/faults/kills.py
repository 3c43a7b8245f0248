"""Simulated kills at every system call that makes something durable."""

import os


class Killed(BaseException):
    """Simulated kill. It is a BaseException, so code that catches Exception does not go on after it."""


class Dying:
    """System calls of a process that is killed at its n-th call: from then on no call has an effect."""

    def __init__(self, dies_at):
        self.num_calls, self._dies_at = 0, dies_at

    def live(self):
        self.num_calls += 1
        if self.num_calls >= self._dies_at:
            raise Killed

    def __getattr__(self, name):
        def call(*args):
            self.live()
            return getattr(os, name)(*args)

        return call
