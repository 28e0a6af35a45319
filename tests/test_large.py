"""Long rows: a vocabulary of a real model and of a million, noise within 1e-13 of a boundary, exact answers."""

from fractions import Fraction

import numpy as np
import oracle
import pytest
from helpers import verify

from specdec_cli.batch import Reading


def flat(rng, vocabulary):
    """Nearly 1/V everywhere: the steps of the cumulative are as close as they can be."""
    row = rng.uniform(0.9, 1.1, vocabulary)
    return row / row.sum()


def peaked(rng, vocabulary):
    """A softmax with a temperature: a few large entries, a tail over many orders of magnitude."""
    row = np.exp(6 * rng.standard_normal(vocabulary))
    return row / row.sum()


def beside(rng, boundary):
    """On the boundary, within 1e-13 of it, and within an ulp of it."""
    offsets = [0, Fraction(1, 10**13), -Fraction(1, 10**13), Fraction(3, 10**14), -Fraction(1, 10**15)]
    s = float(boundary + offsets[rng.integers(len(offsets))])
    s = [s, np.nextafter(s, 0), np.nextafter(s, 1)][rng.integers(3)]
    return float(np.clip(s, 0.0, np.nextafter(1.0, 0)))


def long_rows(rng, make, vocabulary, dtype, decimal, draws):
    """Rows that are all rejected (G = 1) or all bonus, each drawn beside a boundary; and their exact answers."""
    p = make(rng, vocabulary).astype(dtype)
    q = make(rng, vocabulary).astype(dtype)
    x = int(np.argmax(q))
    p[x] = 0.0  # never accepted, so that n = 0 and the residual is drawn from
    noise, tokens, want = [], [], []
    for token, sums in ((x, oracle.running_sums(p, q, decimal)), (-1, oracle.running_sums(p, None, decimal))):
        for _ in range(draws):
            s = beside(rng, Fraction(sums[rng.integers(vocabulary)], sums[-1]))
            noise.append(s)
            tokens.append([token])
            want.append(oracle.draw_from(sums, s, decimal))
    rows = len(noise)
    fields = {
        "draft_tokens": np.array(tokens, np.int32),
        "draft_probs": np.broadcast_to(q, (rows, 1, vocabulary)),
        "target_probs": np.broadcast_to(np.stack([p, p]), (rows, 2, vocabulary)),
        "accept_uniforms": np.zeros((rows, 1)),
        "sample_uniforms": np.array(noise),
    }
    return fields, want


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [flat, peaked])
@pytest.mark.parametrize(("vocabulary", "draws"), [(128_256, 6), (1_048_576, 2)])
def test_a_draw_beside_a_boundary_is_the_exact_one(vocabulary, draws, make, dtype):
    rng = np.random.default_rng(vocabulary + draws)
    fields, want = long_rows(rng, make, vocabulary, dtype, False, draws)
    got = verify(fields, validate=False)
    assert got.num_accepted.tolist() == [0] * len(want)
    assert got.tokens[:, 0].tolist() == want


@pytest.mark.parametrize("make", [flat, peaked])
def test_a_draw_beside_a_boundary_is_the_exact_one_as_decimals(make):
    fields, want = long_rows(np.random.default_rng(1), make, 128_256, np.float64, True, 2)
    assert verify(fields, Reading.DECIMAL, validate=False).tokens[:, 0].tolist() == want


@pytest.mark.parametrize("make", [flat, peaked])
def test_a_device_without_float64_draws_the_same(make):
    fields, want = long_rows(np.random.default_rng(2), make, 128_256, np.float32, False, 3)
    assert verify(fields, validate=False, dtype="float32").tokens[:, 0].tolist() == want


def test_ordinary_long_rows_take_the_fast_way():
    """No row of 2,000 is decided exactly; the benchmark counts them over many more."""
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((20, 32_000), dtype=np.float32)
    probs = np.exp(2 * logits)
    probs /= probs.sum(axis=-1, keepdims=True)
    index = rng.integers(0, 20, (2000, 3))
    for at in range(0, 2000, 250):
        part = index[at : at + 250]
        got = verify(
            {
                "draft_tokens": rng.integers(0, 32_000, (250, 1)),
                "draft_probs": probs[part[:, :1]],
                "target_probs": probs[part[:, 1:]],
                "accept_uniforms": rng.random((250, 1)),
                "sample_uniforms": rng.random(250),
            }
        )
        assert not got.draw_exact.any()
        assert not got.accept_exact.any()
