"""Rows that are hard to decide, by name: what `test_oracle.py` feeds to the package and to the oracle.

A generator takes a NumPy random generator and V and returns one distribution as float64. Most of them are full
of exact ties and near-ties, on purpose; `noise` then puts u and s on, or one ulp beside, a boundary.
"""

from fractions import Fraction

import numpy as np


def decimals(digits):
    def make(rng, vocabulary):
        """Multiples of 10^-digits that sum to 1, many of them equal or zero."""
        whole = 10**digits
        cuts = np.sort(rng.integers(0, whole + 1, vocabulary - 1))
        return np.diff([0, *cuts, whole]) / whole

    return make


def dyadic(rng, vocabulary):
    """Multiples of 1/16: exact in every float type."""
    cuts = np.sort(rng.integers(0, 17, vocabulary - 1))
    return np.diff([0, *cuts, 16]) / 16


def one_hot(rng, vocabulary):
    row = np.zeros(vocabulary)
    row[rng.integers(vocabulary)] = 1.0
    return row


def zero_head_and_tail(rng, vocabulary):
    """Mass in the middle only."""
    row = np.zeros(vocabulary)
    middle = slice(vocabulary // 3, max(vocabulary // 3 + 1, 2 * vocabulary // 3))
    row[middle] = softmax(rng, len(row[middle]))
    return row


def softmax(rng, vocabulary):
    """Ordinary: full mantissas."""
    row = np.exp(2 * rng.standard_normal(vocabulary))
    return row / row.sum()


def subnormals(rng, vocabulary):
    """One entry of 1, the others subnormal doubles or zero."""
    row = rng.integers(0, 4, vocabulary) * 5e-324
    row[rng.integers(vocabulary)] = 1.0
    return row


def single_subnormals(rng, vocabulary):
    """One entry of 1, the others about float32's smallest normal, 2^-126: some of them subnormal there."""
    row = rng.integers(0, 64, vocabulary) * 2.0**-130
    row[rng.integers(vocabulary)] = 1.0
    return row


def wide(rng, vocabulary):
    """Spanning 300 orders of magnitude."""
    row = 10.0 ** rng.uniform(-300, 0, vocabulary)
    row[rng.integers(vocabulary)] = 1.0
    return row / row.sum()


def flat(rng, vocabulary):
    """1/V everywhere: every cumulative is a near-tie in some precision."""
    return np.full(vocabulary, 1 / vocabulary)


KINDS = {
    "one decimal": decimals(1),
    "two decimals": decimals(2),
    "three decimals": decimals(3),
    "dyadic": dyadic,
    "one-hot": one_hot,
    "zero head and tail": zero_head_and_tail,
    "softmax": softmax,
    "subnormals": subnormals,
    "single subnormals": single_subnormals,
    "wide": wide,
    "flat": flat,
}

BELOW_ONE = np.nextafter(1.0, 0.0)


def batch(rng, kind, rows, positions, vocabulary, dtype=np.float64):
    """A batch of one kind (a name in `KINDS`, or "mixed"), with shorter drafts and noise on boundaries."""

    def one():
        name = rng.choice(list(KINDS)) if kind == "mixed" else kind
        return KINDS[name](rng, vocabulary)

    def many(*shape):
        made = [one() for _ in range(int(np.prod(shape)))]
        return np.array(made).reshape(*shape, vocabulary).astype(dtype)

    target = many(rows, positions + 1)
    draft = many(rows, positions)
    # Some rows propose what the target says: p = q, where a residual can be empty.
    same = rng.random((rows, positions)) < 0.1
    draft[same] = target[:, :positions][same]
    # In some it nearly says so: the residual is a difference of close numbers, which floats get wrong.
    close = rng.random((rows, positions)) < (0.0 if kind in ("dyadic", "one-hot") else 0.1)
    steps = rng.integers(-3, 4, draft.shape) * 1e-12
    draft = np.where(close[..., None], np.maximum(np.round(target[:, :positions] + steps, 15), 0), draft)
    draft = draft.astype(dtype)
    tokens = rng.integers(0, vocabulary, (rows, positions))
    for row in range(rows):
        for i in range(positions):
            likely = np.flatnonzero(draft[row, i])
            if likely.size and rng.random() < 0.8:  # mostly what a draft can propose
                tokens[row, i] = rng.choice(likely)
        if rng.random() < 0.2:
            tokens[row, rng.integers(0, positions + 1) :] = -1
    return {
        "draft_tokens": tokens.astype(np.int32),
        "draft_probs": draft,
        "target_probs": target,
        "accept_uniforms": _accept_noise(rng, tokens, draft, target),
        "sample_uniforms": _sample_noise(rng, rows, draft, target),
    }


def _beside(rng, boundary):
    """A number on a boundary, one ulp to either side, or near it, in [0, 1)."""
    near = [boundary, np.nextafter(boundary, 0), np.nextafter(boundary, 2), boundary * (1 + 1e-13)]
    return float(np.clip(near[rng.integers(4)], 0.0, BELOW_ONE))


def _accept_noise(rng, tokens, draft, target):
    noise = np.round(rng.random(tokens.shape), rng.integers(1, 18))
    for row, i in np.ndindex(*tokens.shape):
        q = float(draft[row, i, tokens[row, i]])
        if q > 0 and rng.random() < 0.5:
            with np.errstate(over="ignore"):
                ratio = float(target[row, i, tokens[row, i]]) / q
            if ratio < 1:
                noise[row, i] = _beside(rng, ratio)
        if rng.random() < 0.3:
            noise[row, i] = 0.0
    return np.clip(noise, 0.0, BELOW_ONE)


def _sample_noise(rng, rows, draft, target):
    noise = np.round(rng.random(rows), rng.integers(1, 18))
    positions = draft.shape[1]
    for row in range(rows):
        if rng.random() < 0.7:
            i = rng.integers(positions + 1)
            q = draft[row, i].tolist() if i < positions else [0.0] * target.shape[2]
            r = [max(Fraction(a) - Fraction(b), 0) for a, b in zip(target[row, i].tolist(), q, strict=True)]
            if sum(r):
                boundary = sum(r[: rng.integers(len(r)) + 1]) / sum(r)
                noise[row] = _beside(rng, float(boundary))
        if rng.random() < 0.1:
            noise[row] = rng.choice([0.0, BELOW_ONE, 5e-324])
    return np.clip(noise, 0.0, BELOW_ONE)
