"""A test must be able to fail: known mistakes, written into the source, and the check that sees each of them.

The exact layer repairs most mistakes of the kernel (it redoes what disagrees), so that they would only show as
lost speed. The kernel is therefore checked by itself, on dyadic numbers, where float64 makes no error and its raw
answer must be the oracle's, ties included. What decides above the kernel is checked whole.
"""

import functools
import inspect
import sys
import types

import jax
import numpy as np
import oracle
import pytest
from generate import batch
from helpers import answer, verify

import specdec_cli
from specdec_cli import compute, decide, exact, kernel, rounding, verification
from specdec_cli.batch import Reading
from specdec_cli.errors import InputError
from specdec_cli.rounding import precision

KERNEL_MUTANTS = {
    "<= for <": ("(margin > jnp.zeros((), dtype))", "(margin >= jnp.zeros((), dtype))"),
    "an epsilon in the accept test": ("return p - u * q", "return p - u * q + 1e-6"),
    "p and q swapped in the accept test": ("return p - u * q", "return q - u * p"),
    "no residual: corrected from p": ("return jnp.maximum(p - q, jnp.zeros((), p.dtype))", "return p"),
    "residual not clamped": ("return jnp.maximum(p - q, jnp.zeros((), p.dtype))", "return jnp.abs(p - q)"),
    "passes summed after the first failure": ("jnp.cumprod(passes.astype(jnp.int32), axis=1)", "passes"),
    "bonus row clamped to the last draft row": (
        "window_of(target_probs, place.row, place.position, start, size)",
        "window_of(target_probs, place.row, jnp.minimum(place.position, positions - 1), start, size)",
    ),
    "bonus drawn after a rejection": ("accepted == length)", "accepted >= 0)"),
    "residual of the wrong position": ("jnp.minimum(place.position, positions - 1)", "jnp.int32(0)"),
    "padding taken for draft tokens": ("drafted = tokens >= 0", "drafted = tokens >= -1"),
    ">= for > in the draw": ("cumulative > threshold[:, None]", "cumulative >= threshold[:, None]"),
    "residual not renormalised": ("threshold = s * mass", "threshold = s"),
    "blocks before not added": ("before[:, None] + running_sum(", "running_sum("),
    "the last block read from a shifted start": (
        "jnp.where(own, weights(place, start, size), jnp.zeros((), mass.dtype))",
        "weights(place, start, size)",
    ),
    "argmax instead of sampling": (
        "token = jnp.minimum(block * BLOCK, vocabulary - size) + within",
        "token = jax.vmap(lambda place: jnp.argmax(weights(place, 0, vocabulary)).astype(jnp.int32))(places)",
    ),
    "the first row whatever the row": (
        "rows = jnp.asarray(first, jnp.int32) + jnp.arange(count or batch, dtype=jnp.int32)",
        "rows = jnp.zeros(count or batch, jnp.int32)",
    ),
}

HOST_MUTANTS = {
    "<= for <": (decide, "passes = closer[position] > 0", "passes = closer[position] >= 0"),
    "the first failure passed over": (decide, "            return position, closer", "            pass"),
    "margins trusted whatever they are": (
        decide,
        "if not abs(margins[position]) > bounds[position]:",
        "if False:",
    ),
    "draws trusted whatever their margin": (
        decide,
        "float(evidence.draw_margin[row]) > float(evidence.draw_bound[row])",
        "True",
    ),
    "the draw not redone at another n": (decide, "n == num_accepted[row] and ", ""),
    "draws in float64 trusted whatever their margin": (
        decide,
        "if not min(through - threshold, threshold - below) > bound:",
        "if False:",
    ),
    "a residual in float64 that is not clamped": (decide, "np.maximum(p - q, 0)", "p - q"),
    "rows sure whatever their accept margins": (
        kernel,
        "counts & ~(jnp.abs(margin) > error_of_accept)",
        "jnp.zeros_like(counts)",
    ),
    "rows sure whatever the margin of their failure": (
        kernel,
        "[None, :] <= accepted[:, None]",
        "[None, :] < accepted[:, None]",
    ),
    "rows sure whatever the margin of their draw": (
        kernel,
        "sure=accept_sure & (draw_margin > error_of_draw)",
        "sure=accept_sure",
    ),
    ">= for > in the exact draw": (exact, "bisect_right(cumulative", "bisect_left(cumulative"),
    "no residual in the exact draw": (exact, "map(sub, *rows)", "rows[0]"),
    "the residual's zeros in the exact draw": (
        exact,
        "p > (0.0 if q is None else q)",
        "p >= (0.0 if q is None else q)",
    ),
    "a decimal read as binary": (
        exact,
        "if reading is Reading.DECIMAL else Fraction(number)",
        "if False else Fraction(number)",
    ),
    "no bound on accept decisions": (
        rounding,
        "relative = 4 * (how.unit + how.reading_error)",
        "relative = 0",
    ),
    "no bound on draws": (
        rounding,
        "relative = 3 * summation_error(most, how.unit) + 6 * how.unit + 2 * how.reading_error",
        "relative = 0",
    ),
    "a draw bound blind to subnormals": (rounding, "absolute = 8 *", "absolute = 0 *"),
}


def mutated(module, old, new):
    """A copy of a module with one place of its source changed."""
    source = inspect.getsource(module)
    assert source.count(old) >= 1, f"the mutant's place is gone from {module.__name__}: {old}"
    copy = types.ModuleType(module.__name__)
    copy.__file__ = module.__file__
    source = source.replace("from bisect import bisect_right", "from bisect import bisect_left, bisect_right")
    sys.modules[module.__name__] = copy  # dataclasses look their module up
    try:
        exec(compile(source.replace(old, new), f"<mutant of {module.__name__}>", "exec"), copy.__dict__)
    finally:
        sys.modules[module.__name__] = module
    return copy


def on_a_grid(fields):
    """Noise on multiples of 1/64, so that float64 computes every product and sum without rounding."""
    return {k: np.floor(v * 64) / 64 if k.endswith("uniforms") else v for k, v in fields.items()}


EXACT_IN_FLOAT64 = [
    on_a_grid(batch(np.random.default_rng(3), "dyadic", 200, 3, 5)),
    on_a_grid(batch(np.random.default_rng(4), "dyadic", 40, 1, 2500)),
    on_a_grid(batch(np.random.default_rng(8), "dyadic", 40, 1, 300)),
]

HARD = [
    batch(np.random.default_rng(5), "mixed", 300, 3, 5),
    batch(np.random.default_rng(6), "mixed", 40, 1, 300),
    batch(np.random.default_rng(7), "single subnormals", 100, 1, 6, np.float32),
]


@functools.cache
def oracle_answers(of_the_kernel, decimal):
    return [oracle.verify(fields, decimal) for fields in (EXACT_IN_FLOAT64 if of_the_kernel else HARD)]


def kernel_is_right(under_test):
    """Whether the kernel's raw answers equal the oracle's on dyadic rows, long ones included."""
    how = precision("float64", decimal=False, input_bits=64)
    for fields, (want, empty) in zip(EXACT_IN_FLOAT64, oracle_answers(True, False), strict=True):
        with jax.enable_x64(True):
            got = jax.device_get(under_test.verify_rows(**fields, how=how, one_by_one=True))
        drawn = ~np.array(empty)  # an empty residual is the exact layer's
        if (got.num_accepted != want["num_accepted"]).any() or (got.tokens != want["tokens"])[drawn].any():
            return False
    return True


def answers_are_right():
    """Whether the whole path agrees with the oracle: on hard rows, in both readings and precisions."""
    for reading in Reading:
        for fields, (want, _) in zip(HARD, oracle_answers(False, reading is Reading.DECIMAL), strict=True):
            for dtype in ("float64", "float32"):
                if answer(verify(fields, reading, dtype=dtype, validate=False)) != want:
                    return False
    return True


def test_the_kernel_is_right_without_a_mutant():
    assert kernel_is_right(kernel)


@pytest.mark.parametrize("name", KERNEL_MUTANTS)
def test_a_mistake_in_the_kernel_is_seen(name):
    assert not kernel_is_right(mutated(kernel, *KERNEL_MUTANTS[name]))


def test_the_answers_are_right_without_a_mutant():
    assert answers_are_right()


@pytest.mark.parametrize("name", HOST_MUTANTS)
def test_a_mistake_above_the_kernel_is_seen(name, monkeypatch):
    module, old, new = HOST_MUTANTS[name]
    copy = mutated(module, old, new)
    if module is rounding:
        # The kernel holds its bounds from when it was imported, and its compiled code holds them too.
        kernel_copy = mutated(kernel, "rows = ", "rows = ")
        kernel_copy.accept_bound, kernel_copy.draw_bound = copy.accept_bound, copy.draw_bound
        monkeypatch.setattr(compute, "kernel", kernel_copy)
    elif module is kernel:
        monkeypatch.setattr(compute, "kernel", copy)
    elif module is exact:
        monkeypatch.setattr(decide, "exact", copy)
    else:
        monkeypatch.setattr(verification, "decide", copy.decide)
    try:
        right = answers_are_right()
    except (AssertionError, InputError, IndexError):
        right = False
    assert not right


def test_the_package_is_whole_after_the_mutants():
    assert sys.modules["specdec_cli.kernel"] is kernel
    assert specdec_cli.verify
