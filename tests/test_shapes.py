"""Inputs of many shapes share few programs, and the shape that is computed in changes no answer."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate import batch
from helpers import FIELDS, answer, verify

from specdec_cli import kernel, programs, shapes
from specdec_cli.batch import make_batch


def step(seed, rows, positions, vocabulary, dtype=np.float64):
    fields = batch(np.random.default_rng(seed), "mixed", rows, positions, vocabulary)
    return {**fields, **{name: fields[name].astype(dtype) for name in ("draft_probs", "target_probs")}}


def test_small_inputs_of_hundreds_of_shapes_share_one_program():
    sizes = [(b, g, v) for b in (1, 2, 3, 4) for g in range(6) for v in range(4, 61, 7)]
    verify(step(0, *sizes[0]))
    before = kernel.verify_rows_and_sums._cache_size()
    for seed, size in enumerate(sizes):
        verify(step(seed, *size))
    assert kernel.verify_rows_and_sums._cache_size() == before


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [(1, 0, 1), (1, 1, 65), (5, 3, 40), (9, 8, 200), (3, 9, 130)])
def test_padded_and_cut_batches_are_answered_as_they_are(size, kind, monkeypatch):
    fields = step(sum(size), *size, kind)
    monkeypatch.setattr(shapes, "SMALL", 0)
    monkeypatch.setattr(shapes, "LARGE", 1 << 40)
    as_it_is = verify(fields, validate=False)
    monkeypatch.setattr(shapes, "LARGE", 1)
    row_by_row = verify(fields, validate=False)
    monkeypatch.undo()
    padded = verify(fields, validate=False)
    assert answer(as_it_is) == answer(row_by_row) == answer(padded)
    for field in ("passed", "draft_token_probs", "target_token_probs", "accept_exact", "empty_residual"):
        assert (getattr(as_it_is, field) == getattr(padded, field)).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 127])
def test_a_large_batch_is_cut_into_runs_whose_lengths_are_powers_of_two(rows, monkeypatch):
    monkeypatch.setattr(shapes, "SMALL", 0)
    monkeypatch.setattr(shapes, "LARGE", 20 * (2 * 2 + 1) * 50 * 8)  # 20 rows
    whole = make_batch(step(rows, rows, 2, 50))
    parts = list(shapes.pieces(whole))
    counts = [piece.count for piece in parts]
    assert sum(counts) == rows
    assert {count & (count - 1) for count in counts} == {0}
    assert max(counts) <= 20
    for name in FIELDS:
        joined = np.concatenate([piece.arrays[name] for piece in parts])
        assert joined.tobytes() == getattr(whole, name).tobytes()


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_arrays_on_a_device_are_shared_between_threads_and_never_copied(rows, monkeypatch):
    monkeypatch.setattr(shapes, "SHARE", 1)
    fields = step(rows, rows, 2, 300, np.float32)
    fields |= {name: jnp.asarray(fields[name]) for name in ("draft_probs", "target_probs")}
    whole = make_batch(fields)
    parts = list(shapes.pieces(whole, 3))
    assert all(piece.arrays["draft_probs"] is whole.draft_probs for piece in parts)
    assert len({piece.count for piece in parts}) == 1
    own = [row for piece in parts for row in range(piece.first, piece.first + piece.count)[piece.own]]
    assert own == list(range(rows))
    shared = answer(verify(fields))
    monkeypatch.undo()
    assert shared == answer(verify(fields))


def test_a_numpy_array_beside_one_on_a_device_is_not_copied_for_every_thread(monkeypatch):
    monkeypatch.setattr(shapes, "SHARE", 1)
    fields = step(8, 8, 2, 300, np.float32)
    fields["draft_probs"] = jnp.asarray(fields["draft_probs"])
    (piece,) = shapes.pieces(make_batch(fields), 4)
    assert (piece.first, piece.count) == (0, 8)


def test_threads_compute_where_their_caller_would(monkeypatch):
    monkeypatch.setattr(shapes, "SMALL", 0)
    monkeypatch.setattr(shapes, "LARGE", 1)
    device, found = jax.devices()[0], set()

    class Programs(programs.Programs):
        def run(self, *arguments, **options):
            found.add((threading.current_thread().name[:7], jax.config.jax_default_device))
            return super().run(*arguments, **options)

    with jax.default_device(device):
        verify(step(0, 6, 2, 50), programs=Programs(None))
    assert {where for _, where in found} == {device}


def test_a_fault_in_a_later_run_is_named_by_its_row_in_the_batch(monkeypatch):
    monkeypatch.setattr(shapes, "SMALL", 0)
    monkeypatch.setattr(shapes, "LARGE", 1)
    fields = step(1, 6, 2, 50)
    fields["target_probs"][4, 1, 3] = np.nan
    with pytest.raises(ValueError, match=r"target_probs\[4\]\[1\]\[3\] is NaN"):
        verify(fields)
