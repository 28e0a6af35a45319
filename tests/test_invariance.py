"""The same row gives the same bytes, whatever travels with it and however it is stored."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generate import batch
from helpers import BASE, FIELDS, answer, arrays, to_json, to_npz, verify

import specdec_cli
from specdec_cli import compute, kernel, shapes
from specdec_cli.rounding import precision
from specdec_cli.structure import PROB_FIELDS


@pytest.fixture(scope="module")
def fields():
    return batch(np.random.default_rng(7), "mixed", 300, 3, 5)


def rows(fields, index):
    return {name: fields[name][index] for name in FIELDS}


def test_rows_do_not_know_their_order(fields):
    order = np.random.default_rng(1).permutation(300)
    whole, shuffled = verify(fields), verify(rows(fields, order))
    assert (whole.tokens[order] == shuffled.tokens).all()
    assert (whole.num_accepted[order] == shuffled.num_accepted).all()


def test_a_row_alone_is_decided_as_in_a_batch_of_3000(fields):
    many = rows(fields, np.tile(np.arange(300), 10))
    whole = verify(many)
    for row in range(0, 3000, 37):
        alone = verify(rows(many, [row]))
        assert alone.tokens[0].tolist() == whole.tokens[row].tolist()


@pytest.mark.parametrize("size", [1, 7, 100, 299])
def test_chunks_of_any_size_add_up_to_the_whole(fields, size):
    parts = [verify(rows(fields, slice(at, at + size))).tokens for at in range(0, 300, size)]
    assert (np.concatenate(parts) == verify(fields).tokens).all()


def test_padded_draft_positions_and_vocabulary_change_nothing(fields):
    positions, vocabulary = 2, 9
    rng = np.random.default_rng(3)
    padded = {
        "draft_tokens": np.pad(fields["draft_tokens"], ((0, 0), (0, positions)), constant_values=-1),
        "accept_uniforms": np.pad(fields["accept_uniforms"], ((0, 0), (0, positions)), constant_values=9.0),
        "sample_uniforms": fields["sample_uniforms"],
    }
    for name in ("draft_probs", "target_probs"):
        wide = np.pad(fields[name], ((0, 0), (0, positions), (0, vocabulary)))
        wide[:, fields[name].shape[1] :] = rng.choice([np.nan, -1.0, np.inf], wide[:, -positions:].shape)
        padded[name] = wide
    assert (verify(padded).tokens[:, :4] == verify(fields).tokens).all()


def test_json_and_npz_of_the_same_numbers_give_the_same_bytes(specdec):
    exact = batch(np.random.default_rng(11), "dyadic", 50, 3, 6)
    for name in ("accept_uniforms", "sample_uniforms"):  # dyadic too, so that both readings agree
        exact[name] = np.floor(exact[name] * 64) / 64
    from_json, from_npz = specdec("run", "-", stdin=to_json(exact)), specdec("run", "-", stdin=to_npz(exact))
    assert from_json.code == from_npz.code == 0
    assert from_json.out == from_npz.out


def test_two_runs_give_the_same_bytes(specdec, fields):
    data = to_npz(fields)
    assert specdec("run", "-", "--no-validate", stdin=data) == specdec("run", "-", "--no-validate", stdin=data)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("computed_in", ["float32", "float64"])
def test_the_batched_form_for_accelerators_decides_as_the_row_by_row_form(dtype, computed_in):
    fields = arrays(batch(np.random.default_rng(5), "dyadic", 60, 2, 7))
    fields["draft_tokens"] = fields["draft_tokens"].astype(np.int32)
    narrow = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    for name in ("draft_probs", "target_probs"):
        fields[name] = fields[name].astype(narrow)
    how = precision(computed_in, decimal=False, input_bits=16)
    if computed_in == "float32":
        fields = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in fields.items()}
    with jax.enable_x64(computed_in == "float64"):
        one_by_one = kernel.verify_rows(**fields, how=how, one_by_one=True)
        together = kernel.verify_rows(**fields, how=how, one_by_one=False)
        assert (one_by_one.num_accepted == together.num_accepted).all()
        assert (one_by_one.tokens == together.tokens).all()
        if dtype == "bfloat16":
            bits = {k: v.view(np.uint16) if k in PROB_FIELDS else v for k, v in fields.items()}
            of_bits = kernel.verify_rows(**bits, how=how, one_by_one=True)
            same = jax.tree.map(lambda a, b: (a == b.view(a.dtype)).all(), one_by_one, of_bits)
            assert all(same)


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("small", [0, shapes.SMALL])
def test_without_draft_positions_the_bonus_token_is_validated_and_drawn(place, small, monkeypatch):
    monkeypatch.setattr(shapes, "SMALL", small)
    target = np.zeros((3, 1, 50), np.float32)
    target[[0, 1, 2], 0, [7, 0, 49]] = 1
    given = {
        "draft_tokens": np.zeros((3, 0), np.int32),
        "draft_probs": place(np.zeros((3, 0, 50), np.float32)),
        "target_probs": place(target),
        "accept_uniforms": np.zeros((3, 0)),
        "sample_uniforms": np.full(3, 0.5),
    }
    assert specdec_cli.verify(**given)["tokens"].tolist() == [[7], [0], [49]]
    with pytest.raises(specdec_cli.InputError, match=r"target_probs\[0\]\[0\] sums to 2"):
        specdec_cli.verify(**{**given, "target_probs": place(target * 2)})


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
def test_evidence_stays_on_the_device_where_floats_decide_everything(place, monkeypatch):
    brought = set()
    own = compute.Computed.own
    monkeypatch.setattr(compute.Computed, "own", lambda computed, name: brought.add(name) or own(computed, name))
    fields = {**arrays(BASE), "accept_uniforms": np.array([[0.1]]), "sample_uniforms": np.array([0.3])}
    specdec_cli.verify(**{name: place(array) for name, array in fields.items()})
    assert brought == {"sure", "num_accepted", "tokens"}


@pytest.mark.filterwarnings("ignore::specdec_cli.EmptyResidualWarning")
@pytest.mark.parametrize("which", ["those that floats decide", "all"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
def test_the_answer_alone_is_the_one_that_comes_with_its_evidence(which, shared, dtype, place, monkeypatch):
    fields = batch(np.random.default_rng(12), "mixed", 400, 3, 70)
    fields |= {name: fields[name].astype(dtype) for name in PROB_FIELDS}
    found = verify(fields, validate=False)
    if which != "all":
        sure = np.flatnonzero(~(found.draw_exact | found.accept_exact.any(axis=1)))
        assert 20 < len(sure) < 400
        fields, found = rows(fields, sure), verify(rows(fields, sure), validate=False)
    if shared:
        monkeypatch.setattr(shapes, "SHARE", 1)
        monkeypatch.setattr(shapes, "SMALL", 1)
        monkeypatch.setattr(compute, "number_of_cores", lambda: 3)
    with jax.enable_x64(True):
        got = specdec_cli.verify(**{name: place(array) for name, array in fields.items()}, validate=False)
    for name, array in got.items():
        assert isinstance(array, jax.Array)
        assert array.dtype == np.int32
        assert not array.weak_type
        assert array.devices() == {jax.devices()[0]}
        assert (array == getattr(found, name)).all()


@pytest.mark.filterwarnings("ignore::specdec_cli.EmptyResidualWarning")
@pytest.mark.parametrize("on_device", [False, True])
def test_the_callers_settings_change_nothing(fields, on_device):
    """Those that forbid what verify does of its own accord: moving arrays, meeting a NaN, overflowing."""
    given = arrays(fields)
    if on_device:
        with jax.enable_x64(True):
            given = jax.device_put(given)
    want = jax.device_get(specdec_cli.verify(**given, validate=False))
    with jax.transfer_guard("disallow"), jax.debug_nans(True), jax.debug_infs(True), np.errstate(all="raise"):
        found = specdec_cli.verify(**given, validate=False)
    assert {name: array.tolist() for name, array in jax.device_get(found).items()} == {
        name: array.tolist() for name, array in want.items()
    }


@pytest.mark.parametrize("kind", ["dyadic", "one-hot"])
def test_every_float_type_gives_the_same_answer_where_it_holds_the_same_numbers(kind):
    import ml_dtypes

    fields = batch(np.random.default_rng(13), kind, 80, 3, 6)
    want = answer(verify(fields))
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, ">f4", ">f8"):
        narrow = {k: v.astype(dtype) if k.endswith("probs") else v for k, v in fields.items()}
        assert answer(verify(narrow)) == want
    integers = {**fields, "draft_tokens": fields["draft_tokens"].astype(">i8")}
    assert answer(verify(integers)) == want
