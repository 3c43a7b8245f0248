"""In-memory table for the row kernels, in either precision, and the same table updated by a plain dense loop."""

import numpy as np

from pipeline.kernels.catch_up import catch_up
from pipeline.kernels.row_rules import ADAM, FTRL, ROWWISE_ADAGRAD, RULE_NUMBERS, SGD, adam_size, step_reference
from pipeline.kernels.update_rows import clip_gradients, update_rows

NUM_STATE = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 2, "adam": 2, "ftrl": 2}
QUIET = 200
NEVER = 1 << 60


class Table:
    """Table of `num_rows` rows of D + 1 weights; step t has the learning rate and L2 of `rates_of(t)`."""

    def __init__(self, kind, dtype, num_rows, dim, first_order, rates_of, num_steps, eps=1e-8, torch_eps=False,
                 beta1=0.9, beta2=0.999, ftrl=(1.0, 0.0, 0.0), seed=0, std=0.1):  # fmt: skip
        self.kind, self.rule, self.dtype = kind, RULE_NUMBERS[kind], np.dtype(dtype).type
        self.dim, self.width = dim, dim + first_order
        self.num_state = (dim > 0) + first_order if self.rule == ROWWISE_ADAGRAD else NUM_STATE[kind] * self.width
        self.floats = np.zeros((num_rows, self.width + self.num_state), dtype)
        if self.rule != FTRL:
            self.floats[:, :dim] = np.random.default_rng(seed).normal(0, std, (num_rows, dim))
        self.words = np.zeros((num_rows, 2), np.uint32)
        self.settings = (1 - beta1, 1 - beta2, 0, 0) if self.rule == ADAM else (*ftrl, 0)
        self.settings = tuple(map(self.dtype, self.settings))
        self.clip = (self.dtype(0), self.dtype(0))
        self.rates, self.begins = np.zeros((num_steps + 1, 4), dtype), np.zeros(num_steps + 1, np.int32)
        for t in range(1, num_steps + 1):
            lr, l2 = rates_of(t)
            size, at_eps = lr, eps
            if self.rule == ADAM:
                size = adam_size(lr, beta1, beta2, t)
                at_eps = eps * (1 - beta2**t) ** 0.5 if torch_eps else eps
            self.rates[t] = size, at_eps, l2, 1
            self.begins[t] = self.begins[t - 1] if t > 1 and rates_of(t) == rates_of(t - 1) else t
        with_l2 = np.flatnonzero(self.rates[:, 2])
        self.ahead = (
            int(with_l2.max(initial=0)),
            QUIET,
            self.dtype(self.rates[:, 2].max()),
            NEVER,
            self.dtype(self.rates[:, 0].max()),
        )
        self.step = 0

    @property
    def weights(self):
        return self.floats[:, : self.width]

    def state(self):
        """Optimizer state: [parts, rows, width] or, row-wise, [rows, parts]."""
        state = self.floats[:, self.width :]
        return state if self.rule == ROWWISE_ADAGRAD else state.reshape(len(state), -1, self.width).swapaxes(0, 1)

    def catch_up(self, rows, step, lifespan=NEVER):
        if self.rule != FTRL:
            catch_up(
                self.rule, self.floats, self.words, 0, 0, rows, self.width, self.dim, step, self.rates, self.begins,
                self.settings, (*self.ahead[:3], lifespan, self.ahead[4]),
            )  # fmt: skip

    def update(self, rows, grads, counts=None, dense=True):
        """Do the next step, with gradients [P, C] of these rows."""
        self.step += 1
        if dense:
            self.catch_up(rows, self.step - 1)
        counts = np.ones(len(rows), np.int32) if counts is None else counts
        clipped = np.zeros(len(rows), np.uint8)
        starts, grads, clips = np.cumsum([0, *counts]).astype(np.int32), grads.astype(self.dtype), self.clip[0] > 0
        if clips:
            clip_gradients(grads, self.weights[rows], counts, self.dim, self.step, self.rates, self.clip, clipped)
        update_rows(
            self.rule, self.floats, self.words, 0, 0, rows, grads, starts, self.dim, self.step, self.rates,
            self.settings, bool(clips),
        )  # fmt: skip
        return clipped

    def all_caught_up(self):
        self.catch_up(np.arange(len(self.floats), dtype=np.int32), self.step)
        return self


class Plain:
    """The same rows, updated one after another; with dense semantics, each row moves at every step."""

    def __init__(self, table):
        self.table = table
        self.weights = table.weights.copy()
        shape = (2, 1) if table.rule == ROWWISE_ADAGRAD else (2, table.width)
        self.state = [np.zeros(shape, table.dtype) for _ in self.weights]

    def update(self, rows, grads, counts=None, dense=True):
        table = self.table
        at = {int(row): p for p, row in enumerate(rows)}
        moved = range(len(self.weights)) if dense else at
        clip = table.clip if table.clip[0] else None
        for row in moved:
            grad = grads[at[row]] if row in at else np.zeros(table.width)
            count = counts[at[row]] if counts is not None and row in at else 1
            step_reference(
                table.rule, self.weights[row], self.state[row], grad.astype(table.dtype), table.rates[table.step],
                table.settings, table.dim, clip, count,
            )  # fmt: skip

    def floats(self):
        """Weights and state in the layout of the table."""
        if self.table.rule == SGD:
            return self.weights
        state = np.array(self.state).reshape(len(self.state), -1)
        if self.table.rule == ROWWISE_ADAGRAD:
            state = state if self.table.dim else state[:, 1:]
        return np.concatenate([self.weights, state[:, : self.table.num_state]], axis=1)
