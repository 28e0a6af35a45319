"""The bounds hold: the kernel's margins are never further from the exact ones than they say.

And no term of them is idle: for each there is an input on which the bound without it would be wrong.
"""

from fractions import Fraction

import jax
import numpy as np
import pytest
from generate import KINDS, batch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli import kernel
from specdec_cli.rounding import (
    BLOCK,
    LANES,
    Precision,
    accept_bound,
    additions,
    draw_bound,
    precision,
    summation_error,
)
from specdec_cli.sums import row_sums

DTYPES = ["float64", "float32"]


def evidence(fields, how):
    """The kernel's raw evidence, on a device of that precision."""
    if how.dtype == "float32":
        fields = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in fields.items()}
    with jax.enable_x64(how.dtype == "float64"):
        return jax.device_get(kernel.verify_rows(**fields, how=how, one_by_one=True))


def meaning(x, decimal):
    return Fraction(repr(float(x))) if decimal else Fraction(float(x))


def errors(fields, how, decimal):
    """(|error|, bound) of every accept margin, and of both draw margins of every row."""
    got = evidence(fields, how)
    accepts, draws = [], []
    rows, _, _ = fields["draft_probs"].shape
    for row in range(rows):
        ids = fields["draft_tokens"][row]
        for i in np.flatnonzero(ids >= 0):
            p, q = (meaning(fields[k][row, i, ids[i]], decimal) for k in ("target_probs", "draft_probs"))
            exact = p - meaning(fields["accept_uniforms"][row, i], decimal) * q
            error = abs(Fraction(float(got.accept_margin[row, i])) - exact)
            accepts.append((error, Fraction(float(got.accept_bound[row, i]))))
        n = int(got.num_accepted[row])
        y = int(got.tokens[row, n])
        p = [meaning(x, decimal) for x in fields["target_probs"][row, n]]
        if n < (ids >= 0).sum():
            q = [meaning(x, decimal) for x in fields["draft_probs"][row, n]]
            p = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
        threshold = meaning(fields["sample_uniforms"][row], decimal) * sum(p)
        for cumulative, theirs in ((sum(p[:y]), got.below[row]), (sum(p[: y + 1]), got.through[row])):
            computed = Fraction(float(theirs)) - Fraction(float(got.threshold[row]))
            draws.append((abs(computed - (cumulative - threshold)), Fraction(float(got.draw_bound[row]))))
    return accepts, draws


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from([*KINDS, "mixed"]), decimal=st.booleans())
@pytest.mark.parametrize("vocabulary", [5, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_margin_is_further_from_the_exact_one_than_its_bound(dtype, vocabulary, seed, kind, decimal):
    rows = 20 if vocabulary == 5 else 2
    fields = batch(np.random.default_rng(seed), kind, rows, 2, vocabulary)
    accepts, draws = errors(fields, precision(dtype, decimal=decimal, input_bits=64), decimal)
    assert all(error <= bound for error, bound in accepts)
    assert all(error <= bound for error, bound in draws)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bounds_are_not_far_too_large_either(dtype):
    """A bound that is never nearly reached would send rows to the exact path for nothing."""
    fields = batch(np.random.default_rng(1), "softmax", 300, 2, 5)
    accepts, draws = errors(fields, precision(dtype, decimal=True, input_bits=64), True)
    assert max(error / bound for error, bound in accepts) > Fraction(1, 20)
    long_rows = batch(np.random.default_rng(2), "softmax", 5, 1, 1500)
    _, draws = errors(long_rows, precision(dtype, decimal=False, input_bits=64), False)
    assert max(error / bound for error, bound in draws) > Fraction(1, 5000)


def one_row(p, q, u, s, dtype=np.float64, x=0):
    return {
        "draft_tokens": np.array([[x]], np.int32),
        "draft_probs": np.array([[q]], dtype),
        "target_probs": np.array([[p, p]], dtype),
        "accept_uniforms": np.array([[u]]),
        "sample_uniforms": np.array([s]),
    }


def without(how, **changes):
    return Precision(**{**{k: getattr(how, k) for k in how.__dataclass_fields__}, **changes})


def test_the_accept_bound_needs_its_rounding_term():
    """0.9·0.9 rounds. A fused multiply-add would not show it, so this is computed in two operations."""
    u, q, p = 0.9, 0.9, 0.9 * 0.9
    how = precision("float64", decimal=False, input_bits=64)
    error = abs(Fraction(p - u * q) - (Fraction(p) - Fraction(u) * Fraction(q)))
    assert 0 < error <= Fraction(accept_bound(u * q, p, q, how))
    assert error > Fraction(8 * how.smallest_normal * (1 + q))  # all that is left without the term


def test_the_accept_bound_needs_its_reading_term():
    """As decimals 0.021/0.7 is 0.03; in float32 the three are each off by up to half an ulp of float32."""
    fields = one_row([0.021, 0.979], [0.7, 0.3], 0.03, 0.5)
    how = precision("float32", decimal=True, input_bits=64)
    ((error, bound),), _ = errors(fields, how, True)
    assert 0 < error <= bound


def test_the_accept_bound_needs_its_flushing_term():
    """A float32 subnormal target probability is flushed to zero on its way to float64 (by XLA on a CPU)."""
    q, p = 2.0**-125, 2.0**-127
    fields = one_row([p, 1.0], [q, 1.0], 0.1, 0.5, np.float32)
    how = precision("float64", decimal=False, input_bits=32)
    ((error, bound),), _ = errors(fields, how, False)
    unaware = Fraction(float(accept_bound(0.1 * q, p, q, without(how, smallest_normal=2.0**-1022))))
    assert unaware < error <= bound


def test_the_draw_bound_needs_its_summation_term():
    fields = one_row([1 / 1500] * 1500, [1.0] + [0.0] * 1499, 0.0, 1499 / 1500)
    how = precision("float32", decimal=False, input_bits=32)
    fields["draft_tokens"][:] = -1
    narrow = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in fields.items()}
    _, draws = errors(narrow, how, False)
    mass = 1.0
    unaware = 6 * how.unit * mass
    assert all(error <= bound for error, bound in draws)
    assert draw_bound(mass, 2.0, 1500, how) > 30 * unaware


def test_the_draw_bound_needs_its_reading_term():
    """p − q of close decimals keeps their reading errors while the mass shrinks."""
    p = [0.3, 0.3, 0.4]
    q = [0.299999999999, 0.299999999999, 0.400000000002]
    fields = one_row(p, q, 0.9999999999999999, 0.5)
    how = precision("float64", decimal=True, input_bits=64)
    _, draws = errors(fields, how, True)
    unaware = Fraction(float(draw_bound(2e-12, 2.0, 3, without(how, reading_error=0.0))))
    assert max(error for error, _ in draws) > unaware
    assert all(error <= bound for error, bound in draws)


def test_the_draw_bound_needs_its_flushing_term():
    fields = one_row([2.0**-127, 2.0**-127, 1.0], [0.0, 0.0, 1.0], 0.0, 0.25, np.float32, x=2)
    fields["accept_uniforms"][:] = 0.9999999
    fields["draft_probs"][0, 0, 2] = np.nextafter(np.float32(1), np.float32(2)) * np.float32(1.00001)
    how = precision("float64", decimal=False, input_bits=32)
    _, draws = errors(fields, how, False)
    assert max(error for error, _ in draws) > 0
    assert all(error <= bound for error, bound in draws)


@pytest.mark.parametrize("vocabulary", [1, BLOCK, BLOCK + 1, 128_256, 1_048_576])
def test_no_summand_passes_through_more_additions_than_counted(vocabulary):
    def cumulative(count):
        """In a cumulative sum of that many: within groups, over the groups before, and of both."""
        groups = -(-count // LANES)
        return (min(LANES, count) - 1) + (groups - 2 if groups > 2 else 0) + (groups > 1)

    of_a_block = (BLOCK // LANES - 1) + (LANES - 1)
    from_the_blocks_before = of_a_block + cumulative(-(-vocabulary // BLOCK)) + 1
    assert additions(vocabulary) >= max(from_the_blocks_before, cumulative(BLOCK) + 1)
    assert additions(vocabulary) <= from_the_blocks_before + LANES + 8  # and not far more than those


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("vocabulary", [5, BLOCK, 3 * BLOCK + 7, 40_000])
def test_sums_of_float32_err_by_no_more_than_their_bound(vocabulary, one_by_one):
    """Numbers that add up badly: each is half an ulp of what was added up before."""
    how = precision("float32", decimal=False, input_bits=32)
    rows = np.full((3, 2, vocabulary), 2.0**-24, np.float32)
    rows[0, :, 0] = rows[1, :, -1] = rows[2, :, vocabulary // 2] = 1
    got = np.asarray(row_sums(rows, how=how, one_by_one=one_by_one))
    for row in range(3):
        exact = sum(map(Fraction, rows[row, 0].tolist()))
        for found in got[row].tolist():
            assert (
                abs(Fraction(found) - exact) <= Fraction(summation_error(additions(vocabulary), how.unit)) * exact
            )


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("vocabulary", [1000, 2048, 3000, 3840, 40_000])
def test_no_two_sums_are_merged_into_one_of_too_many_additions(vocabulary, one_by_one):
    """1, and in each lane of each block what is lost when it is added to 1 alone."""
    how = precision("float32", decimal=False, input_bits=32)
    row = np.zeros(vocabulary, np.float32)
    row[np.arange(vocabulary) % BLOCK < LANES] = 0.99 * 2.0**-24
    row[0] = 1
    exact = sum(map(Fraction, row.tolist()))
    got = np.asarray(row_sums(np.tile(row, (3, 3, 1)), how=how, one_by_one=one_by_one))
    for found in got.flat:
        assert (
            abs(Fraction(float(found)) - exact)
            <= Fraction(summation_error(additions(vocabulary), how.unit)) * exact
        )


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -1e-40])
def test_a_row_with_an_entry_that_is_no_probability_has_no_sum(bad, one_by_one):
    how = precision("float32", decimal=False, input_bits=32)
    rows = np.full((2, 3, 700), 0.25, np.float32)
    rows[1, 2, 699] = bad
    rows[0, 0, 0] = -0.0
    got = np.asarray(row_sums(rows, how=how, one_by_one=one_by_one))
    assert np.isnan(got).tolist() == [[False] * 3, [False, False, True]]


def test_a_vocabulary_too_large_for_the_bound_has_an_infinite_one():
    assert summation_error(2**24, 2.0**-24) == float("inf")
    assert summation_error(2**10, 2.0**-24) < 1e-3
