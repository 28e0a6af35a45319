"""What the two forms of the kernel hold in memory, read from the programs themselves: shapes and bytes."""

import math
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import FIELDS

from specdec_cli import kernel, sums
from specdec_cli.batch import make_batch
from specdec_cli.programs import Programs
from specdec_cli.rounding import BLOCK, precision
from specdec_cli.settings import Settings
from specdec_cli.structure import PROB_FIELDS
from specdec_cli.sums import ROW_BY_ROW
from specdec_cli.verification import verify_batch

B, G, V = 7, 3, 50_001
HOW = precision("float64", decimal=True, input_bits=32)  # a reading error, so that p + q is summed too
ARRAYS = [
    jax.ShapeDtypeStruct((B, G), jnp.int32),
    jax.ShapeDtypeStruct((B, G, V), jnp.float32),
    jax.ShapeDtypeStruct((B, G + 1, V), jnp.float32),
    jax.ShapeDtypeStruct((B, G), np.float64),
    jax.ShapeDtypeStruct((B,), np.float64),
]


def program(function, arrays, one_by_one):
    with jax.enable_x64(True):
        return function.lower(*arrays, how=HOW, one_by_one=one_by_one)


def sizes(text):
    """The number of entries of every array in a program, those of the inputs' shapes left out."""
    shapes = {tuple(map(int, found.split("x"))) for found in re.findall(r"tensor<((?:\d+x)*\d+)x[a-z]", text)}
    return [math.prod(shape) for shape in shapes - {(B, G, V), (B, G + 1, V)}]


def test_the_batched_form_goes_through_no_rows_and_makes_no_array_of_all_positions():
    text = program(kernel.verify_rows, ARRAYS, one_by_one=False).as_text()
    assert "while" not in text
    assert max(sizes(text)) <= B * V


def test_the_batched_sums_gather_nothing():
    text = program(sums.row_sums, [ARRAYS[2]], one_by_one=False).as_text()
    assert "while" not in text
    assert "gather" not in text
    assert max(sizes(text)) == B * (G + 1) * V  # the input itself, seen as a list of rows


@pytest.mark.parametrize("function", [kernel.verify_rows, sums.row_sums])
def test_the_row_by_row_form_holds_a_stretch_of_a_row(function):
    arrays = ARRAYS if function is kernel.verify_rows else [ARRAYS[2]]
    lowered = program(function, arrays, one_by_one=True)
    most = max(ROW_BY_ROW.at_once, B * (G + 1) * -(-V // BLOCK) * 2)
    assert max(sizes(lowered.as_text())) <= most
    assert (
        lowered.compile().memory_analysis().temp_size_in_bytes < 8 * V * 8
    )  # far less than one position of all rows


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
def test_no_copy_is_made_of_the_rows_whatever_their_type(dtype, validate, place):
    """Of bfloat16 numbers XLA makes a float32 copy on a CPU, which took 25 times as long as all the rest."""

    class Compiled(Exception):
        pass

    class Looked(Programs):
        def run(self, function, arrays, devices, **options):
            program = function.lower(**arrays, **options).compile()
            raise Compiled(program.memory_analysis().temp_size_in_bytes)

    with jax.enable_x64(True):
        fields = {
            name: place(np.zeros(array.shape, array.dtype)) for name, array in zip(FIELDS, ARRAYS, strict=True)
        }
        fields |= {name: fields[name].astype(dtype) for name in PROB_FIELDS}
    with pytest.raises(Compiled) as found:
        verify_batch(make_batch(fields), Settings(validate), programs=Looked(None))
    assert found.value.args[0] < fields["draft_probs"].nbytes / 4
