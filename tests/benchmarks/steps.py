"""Ordinary inputs for the benchmarks, made quickly and in any size.

POOL softmaxes of normal logits (standard deviation 2) are made once. A draft row q is one of them; the target row
beside it is p = 0.7 q + 0.3 times another, so that drafts are both accepted and rejected; the bonus row is one of
them. Each draft token is drawn from its own q, and the noise is uniform. Nothing is chosen by its outcome.
"""

import numpy as np

POOL = 64


def softmaxes(rng, vocabulary):
    """float32 (POOL, V)."""
    pool = np.empty((POOL, vocabulary), np.float32)
    for row in pool:
        weights = np.exp(2 * rng.standard_normal(vocabulary))
        row[:] = weights / weights.sum()
    return pool


class Steps:
    """B rows of G positions. The small arrays are attributes; the large ones are made a row at a time."""

    def __init__(self, rows, positions, vocabulary, seed=2026):
        rng = np.random.default_rng(seed)
        self.shape = rows, positions, vocabulary
        self.pool = softmaxes(rng, vocabulary)
        self.drafts = rng.integers(0, POOL, (rows, positions))
        self.others = rng.integers(0, POOL, (rows, positions + 1))
        self.accept_uniforms = rng.random((rows, positions), np.float32)
        self.sample_uniforms = rng.random(rows, np.float32)
        self.draft_tokens = np.empty((rows, positions), np.int32)
        for index, q in enumerate(self.pool):
            here = self.drafts == index
            cumulative = np.cumsum(q, dtype=np.float64)
            noise = rng.random(here.sum()) * cumulative[-1]
            self.draft_tokens[here] = np.searchsorted(cumulative, noise, side="right")

    def draft_row(self, b):
        """float32 (G, V)."""
        return self.pool[self.drafts[b]]

    def target_row(self, b):
        """float32 (G + 1, V)."""
        target = self.pool[self.others[b]]
        for position, q in enumerate(self.pool[self.drafts[b]]):
            target[position] = np.float32(0.7) * q + np.float32(0.3) * target[position]
        return target

    def arrays(self):
        """The five arrays in memory, in the order of `verify`'s arguments."""
        rows, positions, vocabulary = self.shape
        draft = np.empty((rows, positions, vocabulary), np.float32)
        target = np.empty((rows, positions + 1, vocabulary), np.float32)
        for b in range(rows):
            draft[b], target[b] = self.draft_row(b), self.target_row(b)
        return self.draft_tokens, draft, target, self.accept_uniforms, self.sample_uniforms
