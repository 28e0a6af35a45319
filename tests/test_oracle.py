"""specdec against plain fractions, on rows that are hard to decide."""

import os

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import oracle
import pytest
from generate import KINDS, batch
from helpers import answer, verify
from hypothesis import given, settings

from specdec_cli.batch import Reading

EXAMPLES = int(os.environ.get("SPECDEC_EXAMPLES", "25"))
"""Batches a test: `make fuzz` raises it."""

SHAPES = [(40, 3, 5), (40, 1, 2), (40, 2, 1), (40, 0, 4), (20, 4, 17)]


def assert_agrees(fields, reading, **options):
    want, empty = oracle.verify(fields, reading is Reading.DECIMAL)
    got = verify(fields, reading, **options)
    assert answer(got) == want
    assert got.empty_residual.tolist() == empty
    return got


seeds = st.integers(0, 2**32 - 1)
shapes = st.sampled_from(SHAPES)
kinds = st.sampled_from([*KINDS, "mixed"])


@settings(max_examples=EXAMPLES)
@given(seed=seeds, shape=shapes, kind=kinds)
@pytest.mark.parametrize("computed_in", ["float64", "float32"])
@pytest.mark.parametrize("reading", Reading)
def test_every_row_agrees_with_the_fractions(reading, computed_in, seed, shape, kind):
    fields = batch(np.random.default_rng(seed), kind, *shape)
    assert_agrees(fields, reading, dtype=computed_in, validate=False)


@settings(max_examples=EXAMPLES)
@given(seed=seeds, shape=shapes, kind=kinds)
@pytest.mark.parametrize("computed_in", ["float64", "float32"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=lambda t: np.dtype(t).name)
def test_every_row_of_every_float_type_agrees_with_the_fractions(dtype, computed_in, seed, shape, kind):
    fields = batch(np.random.default_rng(seed), kind, *shape, dtype)
    fields["target_probs"][..., 0] += (fields["target_probs"].sum(-1) == 0).astype(dtype)  # all rounded to 0
    assert_agrees(fields, Reading.BINARY, dtype=computed_in, validate=False)


probability = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 1.0]) | st.floats(0, 1)
noise = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1 / 3]) | st.floats(0, 1, exclude_max=True)


@st.composite
def small_batches(draw):
    """B = 2, G = 2, V = 3, entry by entry, so that hypothesis can shrink what it finds."""

    def array(shape, elements):
        flat = draw(st.lists(elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        return np.array(flat).reshape(shape)

    target = array((2, 3, 3), probability)
    target[..., 0] += target.sum(-1) == 0  # some token must be there to draw
    tokens = array((2, 2), st.integers(0, 2)).astype(np.int32)
    for row, length in enumerate(draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))):
        tokens[row, length:] = -1
    return {
        "draft_tokens": tokens,
        "draft_probs": array((2, 2, 3), probability),
        "target_probs": target,
        "accept_uniforms": array((2, 2), noise),
        "sample_uniforms": array((2,), noise),
    }


@settings(max_examples=300)
@given(fields=small_batches(), reading=st.sampled_from(Reading), dtype=st.sampled_from(["float64", "float32"]))
def test_small_batches_agree_with_the_fractions_whatever_their_sums(fields, reading, dtype):
    assert_agrees(fields, reading, dtype=dtype, validate=False)
