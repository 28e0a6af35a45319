"""The five fields and those of an answer: their axes and types, checked without a look at their values.

Axes, here and everywhere: B rows, G draft positions, V vocabulary entries.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from specdec_cli.errors import InputError

AXES = {
    "draft_tokens": ("B", "G"),
    "draft_probs": ("B", "G", "V"),
    "target_probs": ("B", "G+1", "V"),
    "accept_uniforms": ("B", "G"),
    "sample_uniforms": ("B",),
}
"""The five fields of an input and their axes, in the order in which they are reported."""

ANSWER_AXES = {"num_accepted": ("B",), "tokens": ("B", "G+1")}
"""The fields of an answer."""

_ALL_AXES = {**AXES, **ANSWER_AXES}
INTEGER_FIELDS = ("draft_tokens", *ANSWER_AXES)

PROB_FIELDS = ("draft_probs", "target_probs")
PROB_DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_structure(arrays: dict[str, Any]) -> dict[str, Any]:
    """Check types and shapes of the five arrays, without a look at their values.

    Returns:
      The arrays; those without elements with all their axes.

    Raises:
      InputError: without the input's name.
    """
    for name, array in arrays.items():
        (_check_integers if name == "draft_tokens" else _check_floats)(name, array)
    return _check_shapes(arrays)


def _check_integers(name: str, array: Any) -> None:
    if array.size and getattr(array.dtype, "kind", "?") not in "iu":
        raise InputError(
            f"holds {array.dtype.name} values, expected integers",
            "convert the ids where they are made, .astype(numpy.int32), so that nothing is rounded here",
            field=name,
        )


def _check_floats(name: str, array: Any) -> None:
    kind_fits = is_prob(array.dtype) or getattr(array.dtype, "kind", "?") in "iu"
    if array.size and not kind_fits:
        raise InputError(
            f"holds {array.dtype.name} values, expected one of {', '.join(PROB_DTYPES)}",
            "convert it to float64",
            field=name,
        )


@cache
def is_prob(dtype: Any) -> bool:
    """Whether it is one of `PROB_DTYPES`; remembered, because NumPy makes a name anew each time."""
    return dtype.name in PROB_DTYPES


def _check_shapes(arrays: dict[str, Any]) -> dict[str, Any]:
    """Let every axis mean the same in all five arrays.

    An array without elements may leave out trailing axes: `[[], []]` in JSON is all that can be written of a
    (2, 0, V) array, and `[]` of any array of no rows.
    """
    for name, axes in AXES.items():
        array = arrays[name]
        if array.ndim != len(axes) and not (array.size == 0 and 0 < array.ndim < len(axes)):
            hint = f"every axis is needed, of a single row too: reshape it to {_tuple(axes)}"
            raise InputError(f"has shape {array.shape}, expected {axes_text(name)}", hint, field=name)

    sizes: dict[str, int] = {}
    given_by: dict[str, str] = {}
    for axis, names in {
        "B": tuple(AXES),
        "G": ("draft_tokens", "draft_probs", "accept_uniforms"),
        "V": ("target_probs", "draft_probs"),
    }.items():
        for name in names:
            place = AXES[name].index(axis)
            if axis not in sizes and arrays[name].ndim > place:
                sizes[axis], given_by[axis] = arrays[name].shape[place], name
    positions = arrays["target_probs"].shape[1] if arrays["target_probs"].ndim > 1 else 0
    sizes.setdefault("G", max(positions - 1, 0))
    sizes.setdefault("V", 0)
    sizes["G+1"] = sizes["G"] + 1

    whole: dict[str, Any] = {}
    for name, axes in AXES.items():
        array = arrays[name]
        wanted_shape = tuple(sizes[axis] for axis in axes)
        if array.size == 0 and array.ndim < len(axes) and 0 in wanted_shape:
            padded = array.shape + wanted_shape[array.ndim :]
            array = array.reshape(padded) if 0 in padded else array
        # With no rows nothing is read, and JSON's `[]` leaves G and V open.
        if array.shape != wanted_shape:
            _shapes_differ(name, array.shape, wanted_shape, sizes, given_by)
        whole[name] = array
    if sizes["B"] and not sizes["V"]:
        raise InputError("has no vocabulary entries (V = 0), expected at least one", field="target_probs")
    return whole


def _shapes_differ(
    name: str,
    found: tuple[int, ...],
    wanted: tuple[int, ...],
    sizes: dict[str, int],
    given_by: dict[str, str],
) -> NoReturn:
    axes = AXES[name]
    known = {a: f"{a} = {sizes[a]} from {given_by[a]}" for a in ("B", "G", "V") if a in given_by}
    if len(found) == len(axes) == 3 and found[:2] == wanted[:2]:
        raise InputError(
            f"has {found[2]} vocabulary entries, {given_by['V']} has {wanted[2]}: "
            f"shapes {found} and {(wanted[0], sizes['G+1'], wanted[2])}",
            "draft and target need one vocabulary: pad the shorter with probability 0, "
            "or cut entries that no tokenizer id uses",
            field=name,
        )
    hint = ""
    if name == "target_probs" and len(found) == 3 and found[1] == sizes["G"]:
        hint = "target_probs has one position more than the draft: the one the bonus token is drawn from"
    elif name == "draft_probs" and found[1:2] == (sizes["G"] - 1,):
        hint = "does draft_tokens hold the bonus token too? It has the G drafted tokens only"
    elif len(found) > 1 and (found[1], found[0]) == wanted[:2] and found[0] != found[1]:
        hint = "are the first two axes swapped?"
    reasons = ", ".join(known[a] for a in ("B", "G", "V") if a in known and a in "".join(axes))
    raise InputError(f"has shape {found}, expected {_tuple(axes)} = {wanted}, with {reasons}", hint, field=name)


def axes_of(field: str) -> tuple[str, ...]:
    """The axes of a field of an input or an answer."""
    return _ALL_AXES[field]


def axes_text(field: str) -> str:
    """`1 axis, (B,)`, for messages."""
    axes = axes_of(field)
    return f"{len(axes)} {'axis' if len(axes) == 1 else 'axes'}, {_tuple(axes)}"


def _tuple(axes: tuple[str, ...]) -> str:
    """As Python writes a shape: `(B,)`, `(B, G)`."""
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
