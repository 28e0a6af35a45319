"""The law that makes speculative decoding lossless: min(p, q) + (1 − Σ min(p, q))·r = p.

Leviathan et al. 2023, appendix A.1: an emitted token has the target's distribution, whatever the draft.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import oracle
import pytest
from helpers import verify
from hypothesis import given
from hypothesis import strategies as st

GRID = 12
"""A multiple of every mass and entry that quarters can lead to: counting grid points loses nothing."""


def quarters(vocabulary):
    """All distributions over a vocabulary whose entries are multiples of 1/4."""
    return [np.array(c) / 4 for c in product(range(5), repeat=vocabulary) if sum(c) == 4]


def emitted_distribution(p, q):
    """Exact distribution of the first emitted token, by counting over a grid of u and s for each draft token.

    Midpoints (k + ½)/GRID never fall on a boundary, which is a multiple of 1/GRID, so that the share of grid
    points on either side of a boundary is the exact probability.
    """
    midpoints = (np.arange(GRID) + 0.5) / GRID
    drafted = np.flatnonzero(q)
    x, u, s = (a.ravel() for a in np.meshgrid(drafted, midpoints, midpoints, indexing="ij"))
    rows = len(x)
    answer = verify(
        {
            "draft_tokens": x[:, None].astype(np.int32),
            "draft_probs": np.broadcast_to(q, (rows, 1, len(q))),
            "target_probs": np.broadcast_to(np.stack([p, p]), (rows, 2, len(p))),
            "accept_uniforms": u[:, None],
            "sample_uniforms": s,
        }
    )
    emitted = [Fraction(0)] * len(p)
    for token, y in zip(x, answer.tokens[:, 0], strict=True):
        emitted[y] += Fraction(float(q[token])) / GRID**2
    return emitted


CASES = [(p, q) for p, q in product(quarters(3), quarters(3)) if 12 % max(4 * np.maximum(p - q, 0).sum(), 1) == 0]


@pytest.mark.parametrize("start", range(0, 40, 8))
def test_the_emitted_token_has_exactly_the_target_distribution(start):
    for p, q in CASES[start::40]:
        assert emitted_distribution(p, q) == [Fraction(float(x)) for x in p], (p, q)


weights = st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any)


@given(weights, st.data())
def test_the_oracle_itself_obeys_the_law(target, data):
    draft = data.draw(st.lists(st.integers(0, 50), min_size=len(target), max_size=len(target)).filter(any))
    p = [Fraction(w, sum(target)) for w in target]
    q = [Fraction(w, sum(draft)) for w in draft]
    overlap = [min(a, b) for a, b in zip(p, q, strict=True)]
    r = oracle.residual(p, q)
    mass = sum(r)
    assert mass == 1 - sum(overlap)
    share = [x / mass if mass else x for x in r]
    assert [o + (1 - sum(overlap)) * x for o, x in zip(overlap, share, strict=True)] == p


def test_sampling_emits_the_target_distribution():
    """200,000 first tokens against p by a chi-squared test at a false-alarm rate of 1e-6 (the seed is fixed)."""
    from scipy import stats

    rng = np.random.default_rng(20170822)
    rows, vocabulary = 200_000, 8
    p, q = rng.dirichlet(np.ones(vocabulary), 2)
    x = rng.choice(vocabulary, rows, p=q)
    answer = verify(
        {
            "draft_tokens": x[:, None].astype(np.int32),
            "draft_probs": np.broadcast_to(q, (rows, 1, vocabulary)),
            "target_probs": np.broadcast_to(np.stack([p, p]), (rows, 2, vocabulary)),
            "accept_uniforms": rng.random((rows, 1)),
            "sample_uniforms": rng.random(rows),
        }
    )
    counts = np.bincount(answer.tokens[:, 0], minlength=vocabulary)
    assert stats.chisquare(counts, rows * p).pvalue > 1e-6
    # The acceptance rate is the overlap, Leviathan et al. 2023, corollary 3.6.
    accepted, overlap = int(answer.num_accepted.sum()), np.minimum(p, q).sum()
    assert stats.binomtest(accepted, rows, overlap).pvalue > 1e-6
