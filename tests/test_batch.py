"""Structure: shapes, types, ids and noise, refused with field, index, and what was expected."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import BASE, FIELDS, answer, arrays, changed, verify

import specdec_cli
from specdec_cli.batch import make_batch
from specdec_cli.errors import EmptyResidualWarning, InputError


def refusal(fields, **options):
    with pytest.raises(InputError) as caught:
        verify_batch_of(fields, **options)
    return caught.value


def verify_batch_of(fields, **options):
    return verify(fields, **options)


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_named(name):
    error = refusal(changed(**{name: None}))
    assert error.sentence == f"is missing {name}"
    assert all(field in error.hint for field in FIELDS)


def test_two_missing_fields_are_both_named():
    error = refusal(changed(draft_probs=None, sample_uniforms=None))
    assert error.problem == "is missing draft_probs, sample_uniforms"
    assert error.hint.endswith("found draft_tokens, target_probs, accept_uniforms")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sample_uniforms": np.float64(0.5)}, "sample_uniforms has shape (), expected 1 axis, (B,)"),
        ({"draft_tokens": [0]}, "draft_tokens has shape (1,), expected 2 axes, (B, G)"),
        ({"draft_probs": [[0.5, 0.5]]}, "draft_probs has shape (1, 2), expected 3 axes, (B, G, V)"),
        (
            {"sample_uniforms": [0.5, 0.5]},
            "sample_uniforms has shape (2,), expected (B,) = (1,), with B = 1 from draft_tokens",
        ),
        (
            {"target_probs": [[[0.5, 0.5]]]},
            "target_probs has shape (1, 1, 2), expected (B, G+1, V) = (1, 2, 2), "
            "with B = 1 from draft_tokens, G = 1 from draft_tokens, V = 2 from target_probs",
        ),
        (
            {"draft_probs": [[[1.0]]]},
            "draft_probs has 1 vocabulary entries, target_probs has 2: shapes (1, 1, 1) and (1, 2, 2)",
        ),
        ({"draft_tokens": np.array([[True]])}, "draft_tokens holds bool values, expected integers"),
        ({"draft_tokens": np.array([[0.0]])}, "draft_tokens holds float64 values, expected integers"),
        ({"draft_tokens": np.array([["0"]])}, "draft_tokens holds str32 values, expected integers"),
        (
            {"draft_probs": np.array([[[0.5, 0.5]]], np.longdouble)},
            f"draft_probs holds {np.dtype(np.longdouble).name} values, "
            "expected one of float16, bfloat16, float32, float64",
        ),
        (
            {"draft_probs": np.array([[[0.5, 0.5]]], complex)},
            "draft_probs holds complex128 values, expected one of float16, bfloat16, float32, float64",
        ),
        (
            {"sample_uniforms": np.array([True])},
            "sample_uniforms holds bool values, expected one of float16, bfloat16, float32, float64",
        ),
        ({"draft_tokens": [[2]]}, "draft_tokens[0][0] is 2, expected a token id in 0..1"),
        ({"draft_tokens": [[-2]]}, "draft_tokens[0][0] is -2, expected a token id in 0..1"),
        ({"draft_tokens": [[2**32]]}, "draft_tokens[0][0] is 4294967296, expected a token id in 0..1"),
        (
            {"draft_tokens": np.array([[2**63 + 1]], np.uint64)},
            "draft_tokens[0][0] is 9223372036854775809, expected a token id in 0..1",
        ),
        ({"accept_uniforms": [[1.0]]}, "accept_uniforms[0][0] is 1.0, expected a number in [0, 1)"),
        ({"accept_uniforms": [[-0.1]]}, "accept_uniforms[0][0] is -0.1, expected a number in [0, 1)"),
        ({"sample_uniforms": [float("nan")]}, "sample_uniforms[0] is nan, expected a number in [0, 1)"),
        ({"sample_uniforms": [float("inf")]}, "sample_uniforms[0] is inf, expected a number in [0, 1)"),
        (
            {"draft_probs": np.array([[[2**53 + 1, 0]]])},
            "draft_probs[0][0][0] is 9007199254740993, which float64 cannot hold; expected a probability",
        ),
        (
            {"target_probs": np.zeros((1, 2, 0)), "draft_probs": np.zeros((1, 1, 0))},
            "target_probs has no vocabulary entries (V = 0), expected at least one",
        ),
    ],
)
def test_a_wrong_structure_is_refused_with_what_was_found_and_expected(fields, said):
    # Also without validation: that skips the probabilities only.
    for validate in (True, False):
        assert refusal(changed(**fields), validate=validate).sentence == said


def test_target_probs_without_the_bonus_position_gets_a_hint():
    assert "one position more" in refusal(changed(target_probs=[[[0.5, 0.5]]])).hint


def test_a_uniform_of_one_gets_the_usual_cause_as_a_hint():
    assert "shorter float type" in refusal(changed(accept_uniforms=[[1.0]])).hint


def test_padding_before_a_token_is_refused():
    two = {
        "draft_tokens": [[-1, 0]],
        "draft_probs": [[[0.5, 0.5]] * 2],
        "target_probs": [[[0.5, 0.5]] * 3],
        "accept_uniforms": [[0.5, 0.5]],
        "sample_uniforms": [0.5],
    }
    assert refusal(two).sentence == "draft_tokens[0][0] is -1, before a token: expected a token id in 0..1"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "is NaN, expected a finite probability, 0 or more"),
        (float("inf"), "is inf, expected a finite probability, 0 or more"),
        (-0.25, "is -0.25, expected a finite probability, 0 or more"),
        (-5e-324, "is -5e-324, expected a finite probability, 0 or more"),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_entry_that_is_no_probability_is_named(dtype, value, said):
    fields = changed(target_probs=[[[0.25, 0.75], [1.0, value]]])
    assert refusal(fields, dtype=dtype).sentence == f"target_probs[0][1][1] {said}"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_negative_number_is_found_in_every_float_type(dtype):
    smallest = -ml_dtypes.finfo(dtype).smallest_subnormal
    probs = np.array([[[1.0, 0.0], [1.0, float(smallest)]]]).astype(dtype)
    assert probs[0, 1, 1] < 0
    assert refusal(changed(target_probs=probs)).where == "target_probs[0][1][1]"


def test_minus_zero_is_zero():
    fields = changed(target_probs=[[[0.25, 0.75], [1.0, -0.0]]], draft_probs=[[[0.5, 0.5]]])
    assert answer(verify(fields)) == {"num_accepted": [0], "tokens": [[1, -1]]}


def test_a_bad_entry_after_the_first_failure_is_refused_all_the_same():
    fields = changed(target_probs=[[[0.25, 0.75], [float("nan"), float("nan")]]])
    assert refusal(fields).where == "target_probs[0][1][0]"


@pytest.mark.parametrize(("dtype", "sums"), [(np.float16, 1.009), (np.float32, 1.0009), (np.float64, 1.0009)])
def test_sums_are_accepted_within_the_tolerance_of_their_type(dtype, sums):
    near = np.array([[[0.25, 0.75], [sums, 0.0]]]).astype(dtype)
    verify(changed(target_probs=near))
    far = np.array([[[0.25, 0.75], [1 + (sums - 1) * 1.3, 0.0]]]).astype(dtype)
    assert refusal(changed(target_probs=far)).where == "target_probs[0][1]"


def test_a_row_of_zeros_without_validation_is_refused_when_a_token_must_come_from_it():
    fields = changed(target_probs=[[[1.0, 0.0], [0.0, 0.0]]])
    assert (
        refusal(fields, validate=False).sentence == "target_probs[0][1] is all zeros, so there is no token to draw"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)])
def test_without_validation_no_answer_comes_from_nan_or_infinity(value, place):
    for name in ("draft_probs", "target_probs"):
        fields = arrays(BASE)
        fields[name] = fields[name].copy()
        if place[1] >= fields[name].shape[1]:
            continue
        fields[name][place] = value
        if place[1] == 1:  # the bonus row, which is not read after a rejection
            assert answer(verify(fields, validate=False)) == {"num_accepted": [0], "tokens": [[1, -1]]}
        else:
            assert refusal(fields, validate=False).where == f"{name}[0][0][{place[2]}]"


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001])
def test_a_signalling_nan_is_refused_without_a_warning(bits):
    fields = arrays(BASE)
    fields["target_probs"] = fields["target_probs"].astype(np.float32)
    fields["target_probs"].view(np.uint32)[0, 0, 1] = bits
    assert "is NaN" in refusal(fields).problem


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_beyond_the_range_of_a_double_are_refused_or_answered_not_a_traceback(dtype):
    fields = changed(draft_tokens=[[-1]], target_probs=[[[1.7e308, 1.7e308], [0.0, 1.0]]], sample_uniforms=[0.4])
    assert refusal(fields, dtype=dtype).problem.startswith("sums to inf")
    assert answer(verify(fields, dtype=dtype, validate=False)) == {"num_accepted": [0], "tokens": [[0, -1]]}


def test_a_sum_just_off_says_how_far():
    fields = changed(target_probs=[[[0.5, 0.5000000001], [1.0, 0.0]]])
    assert "which is 1e-10 away from 1" in refusal(fields, sum_tolerance=Fraction(1, 10**11)).problem


def test_16_bit_values_stored_wider_get_the_remedy_as_a_hint():
    fields = changed(target_probs=np.array([[[0.25, 0.752], [1.0, 0.0]]], np.float32))
    assert "sum_tolerance=0.01" in refusal(fields).hint
    assert answer(verify(fields, sum_tolerance=Fraction(1, 100))) == {"num_accepted": [0], "tokens": [[1, -1]]}
    assert specdec_cli.verify(**arrays(fields), sum_tolerance=0.01)["tokens"].tolist() == [[1, -1]]


def test_integers_past_a_shorter_draft_may_hold_anything_too():
    fields = changed(draft_tokens=[[-1]], draft_probs=np.full((1, 1, 2), 7), target_probs=[[[1, 0], [7, 7]]])
    assert answer(verify(fields)) == {"num_accepted": [0], "tokens": [[0, -1]]}


def test_the_evidence_holds_the_inputs_own_probabilities_in_every_precision():
    fields = changed(draft_probs=[[[1e-50, 1.0]]], target_probs=[[[1e-51, 1.0], [1.0, 0.0]]])
    for dtype in ("float64", "float32"):
        got = verify(fields, dtype=dtype)
        assert (got.draft_token_probs.tolist(), got.target_token_probs.tolist()) == ([[1e-50]], [[1e-51]])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_callers_numpy_error_settings_do_not_matter(dtype):
    fields = changed(draft_tokens=[[-1]], target_probs=[[[0.5, 0.5 - 1e-50, 1e-50], [1.0, 0.0, 0.0]]])
    fields["draft_probs"] = [[[1.0, 0.0, 0.0]]]
    with np.errstate(all="raise"):
        assert answer(verify(fields, dtype=dtype)) == {"num_accepted": [0], "tokens": [[1, -1]]}


def test_negative_draft_or_target_probabilities_of_a_token_are_refused_without_validation_too():
    fields = changed(draft_probs=[[[-0.25, 1.25]]], target_probs=[[[0.0, 1.0], [1.0, 0.0]]])
    for dtype in ("float64", "float32"):
        assert refusal(fields, dtype=dtype, validate=False).where == "draft_probs[0][0][0]"


def test_masked_entries_keys_and_narrow_integers_are_told_apart():
    masked = np.ma.masked_array([[0.5]], mask=[[True]])
    assert refusal(changed(accept_uniforms=masked)).problem == "has masked entries, expected plain numbers"
    keys = jax.random.key(0).reshape(1, 1)
    assert refusal(changed(draft_tokens=keys)).problem.endswith("expected integers")
    narrow = jnp.asarray([[0]], jnp.int4)
    assert answer(verify(changed(draft_tokens=narrow))) == {"num_accepted": [0], "tokens": [[1, -1]]}


def test_the_kernel_computes_in_no_precision_that_nothing_is_proven_for():
    with pytest.raises(ValueError, match="float64 or float32, not in bfloat16"):
        verify(BASE, dtype="bfloat16")


def test_empty_batches_and_drafts_are_valid():
    assert answer(verify({name: [] for name in FIELDS})) == {"num_accepted": [], "tokens": []}
    no_rows = {
        "draft_tokens": np.zeros((0, 2), np.int32),
        "draft_probs": np.zeros((0, 2, 3)),
        "target_probs": np.zeros((0, 3, 3)),
        "accept_uniforms": np.zeros((0, 2)),
        "sample_uniforms": np.zeros(0),
    }
    assert verify(no_rows).tokens.shape == (0, 3)
    no_drafts = {
        "draft_tokens": [[], []],
        "draft_probs": [[], []],
        "target_probs": [[[0.5, 0.25, 0.25]], [[0.25, 0.25, 0.5]]],
        "accept_uniforms": [[], []],
        "sample_uniforms": [0.25, 0.5],
    }
    want = {"num_accepted": [0, 0], "tokens": [[0], [2]]}
    assert answer(verify(no_drafts)) == want
    assert answer(verify({**no_drafts, "draft_probs": np.zeros((2, 0, 3))})) == want
    assert refusal({**no_drafts, "draft_probs": np.zeros((2, 0, 4))}).field == "draft_probs"


def test_what_a_shorter_draft_leaves_out_may_hold_anything():
    fields = {
        "draft_tokens": [[1, -1, -1]],
        "draft_probs": [[[0.5, 0.5], [float("nan"), -1.0], [float("inf"), 0.0]]],
        "target_probs": [[[0.5, 0.5], [0.25, 0.75], [float("nan"), 7.0], [-1.0, 0.0]]],
        "accept_uniforms": [[0.5, float("nan"), 2.0]],
        "sample_uniforms": [0.5],
    }
    for dtype in ("float64", "float32"):
        got = verify(fields, dtype=dtype)
        assert answer(got) == {"num_accepted": [1], "tokens": [[1, 1, -1, -1]]}
        for name in ("draft_token_probs", "target_token_probs", "accept_margin", "mass", "threshold"):
            assert np.isfinite(getattr(got, name)).all()


def test_integer_probabilities_are_one_hot_rows():
    fields = changed(draft_probs=np.eye(2, dtype=int)[None, :1], target_probs=np.eye(2, dtype=np.uint8)[None])
    assert answer(verify(fields)) == {"num_accepted": [1], "tokens": [[0, 1]]}


@pytest.mark.parametrize("dtype", [complex, "M8[s]", "U3", object, bool])
@pytest.mark.parametrize("name", ["draft_tokens", "draft_probs", "accept_uniforms"])
def test_an_array_without_elements_has_no_type_to_be_wrong(name, dtype):
    fields = {
        "draft_tokens": np.zeros((1, 0), int),
        "draft_probs": np.zeros((1, 0, 2)),
        "target_probs": np.array([[[0.25, 0.75]]]),
        "accept_uniforms": np.zeros((1, 0)),
        "sample_uniforms": np.array([0.5]),
    }
    fields[name] = fields[name].astype(dtype)
    assert answer(verify(fields)) == {"num_accepted": [0], "tokens": [[1]]}


def test_ids_of_every_integer_width_and_byte_order_are_read():
    for dtype in ("i1", "u1", ">i2", "<u2", ">i4", "u4", ">i8", ">u8"):
        fields = changed(draft_tokens=np.array([[0]], dtype))
        assert answer(verify(fields)) == {"num_accepted": [0], "tokens": [[1, -1]]}


def test_ids_past_the_16_bit_and_float16_ranges_come_back_whole():
    rows, vocabulary = 2, 70_000
    q, p = np.zeros((rows, 1, vocabulary)), np.zeros((rows, 2, vocabulary))
    q[0, 0, 69_999] = p[0, 0, 69_999] = p[0, 1, 69_998] = 1
    q[1, 0, 0] = p[1, 0, 65_536] = p[1, 1, 1] = 1
    fields = {
        "draft_tokens": [[69_999], [0]],
        "draft_probs": q,
        "target_probs": p,
        "accept_uniforms": [[0.5], [0.5]],
        "sample_uniforms": [0.5, 0.5],
    }
    want = {"num_accepted": [1, 0], "tokens": [[69_999, 69_998], [65_536, -1]]}
    assert answer(verify(fields)) == want


def test_a_call_inside_jit_says_that_it_needs_values():
    given = {k: jnp.asarray(v) for k, v in arrays(BASE).items() if k != "draft_tokens"}
    with pytest.raises(TypeError, match="needs values"):
        jax.jit(
            lambda u: specdec_cli.verify(np.array([[0]]), given["draft_probs"], given["target_probs"], u, [0.5])
        )(given["accept_uniforms"])


def test_the_python_call_takes_nested_lists_and_warns_of_an_empty_residual():
    with pytest.warns(EmptyResidualWarning, match="row 0: empty residual at position 0"):
        got = specdec_cli.verify([[1]], [[[0.5, 0.5]]], [[[0.5, 0.499999], [0.0, 1.0]]], [[0.9999985]], [0.5])
    assert got["tokens"].tolist() == [[0, -1]]


def test_the_python_call_leaves_the_callers_jax_settings_alone():
    before = jnp.asarray(np.zeros(1)).dtype
    specdec_cli.verify(**arrays(BASE))
    assert jnp.asarray(np.zeros(1)).dtype == before == jnp.float32


def test_inputs_are_not_changed():
    given = arrays(BASE)
    copies = {k: v.copy() for k, v in given.items()}
    specdec_cli.verify(**given)
    assert all((given[k] == copies[k]).all() for k in given)


def test_a_batch_says_its_shape_and_draft_lengths():
    batch = make_batch(arrays(changed(draft_tokens=[[-1]])))
    assert (batch.shape, batch.draft_lengths.tolist()) == ((1, 1, 2), [0])
