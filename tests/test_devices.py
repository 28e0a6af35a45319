"""Rows shared over several devices of one process: the same answers as from one.

A CPU counts as several devices where JAX_NUM_CPU_DEVICES says so when JAX starts, hence the processes here.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers import BASE, CASES, CONFORMANCE, FIELDS, ROOT, SAMPLES, arrays

import specdec_cli

NUMBERS = (2, 3, 4)


def in_a_process(devices, program, *arguments, code=0):
    """What a Python program writes on stdout and stderr, where JAX has that many CPU devices."""
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def specdec_on(devices, *arguments, code=0):
    return in_a_process(devices, "from specdec_cli.cli import main; main()", *arguments, code=code)


# Batches of every kind: B that does not divide, B below the number of devices, G = 0, shapes that are padded, and
# ones that are cut.
SHAPES = [
    (1, 1, 3),
    (2, 3, 5),
    (3, 2, 40),
    (5, 3, 64),
    (8, 4, 100),
    (7, 2, 300),
    (300, 3, 6),
    (3, 0, 7),
    (9, 1, 300),
]

EVERY_SHAPE = f"""
import sys, warnings
import jax, numpy as np
import specdec_cli
from generate import batch
from specdec_cli import mesh, shapes
warnings.simplefilter("ignore")
assert len(jax.devices()) == 4

def are_the_same(got, want, *what):
    assert all((got[name] == want[name]).all() for name in want), what
    assert all(array.devices() == {{jax.devices()[0]}} and not array.committed for array in got.values()), what

for small in (shapes.SMALL, 0):
    shapes.SMALL, shapes.LARGE = small, shapes.LARGE if small else 20_000
    for seed, (rows, positions, vocabulary) in enumerate({SHAPES}):
        fields = batch(np.random.default_rng(seed), "mixed", rows, positions, vocabulary)
        fields["draft_tokens"] = fields["draft_tokens"].astype(np.int32)
        for place in (np.asarray, jax.numpy.asarray):
            given = {{name: place(array) if "probs" in name else array for name, array in fields.items()}}
            want = specdec_cli.verify(**given, validate=False)
            for devices in (1, *{NUMBERS}, "all"):
                got = specdec_cli.verify(**given, validate=False, devices=devices)
                are_the_same(got, want, seed, devices)
over = mesh.mesh_of(tuple(jax.devices()))
given = batch(np.random.default_rng(0), "mixed", 8, 2, 9)
given["draft_tokens"] = given["draft_tokens"].astype(np.int32)
want = specdec_cli.verify(**given, validate=False)
with jax.enable_x64(True):
    spread = {{name: mesh.spread(name, array, over) for name, array in given.items()}}  # by the caller
for devices in (None, 1, 2, "all"):
    got = specdec_cli.verify(**spread, validate=False, devices=devices)
    are_the_same(got, want, devices)
with jax.enable_x64(True):
    apart = {{**spread, "draft_probs": jax.device_put(given["draft_probs"], jax.devices()[1])}}
    apart["target_probs"] = jax.device_put(given["target_probs"], jax.devices()[2])
for devices in (1, 2):
    got = specdec_cli.verify(**apart, validate=False, devices=devices)
    are_the_same(got, want, devices)
with jax.set_mesh(jax.make_mesh((4,), ("y",))):  # of the caller's
    got = specdec_cli.verify(**given, validate=False, devices=2)
    assert all((got[name] == want[name]).all() for name in want)
with jax.disable_jit():
    got = specdec_cli.verify(**given, validate=False)
    assert all(isinstance(array, jax.Array) for array in got.values())
print("same")
"""


def test_batches_of_every_shape_are_answered_as_by_one_device():
    assert in_a_process(4, EVERY_SHAPE)[0] == "same\n"


@pytest.mark.parametrize("devices", NUMBERS)
def test_every_conformance_case_gives_the_same_bytes(devices):
    one = specdec_on(1, "run", CONFORMANCE, code=2)  # some cases are refused
    assert len(one[0].splitlines()) == len(CASES)
    assert specdec_on(devices, "run", CONFORMANCE, "--devices", "all", code=2) == one


EACH_ITS_OWN = """
import jax, numpy as np
from specdec_cli import mesh
over = mesh.mesh_of(tuple(jax.devices()))
rows = np.arange(10.0).reshape(5, 2)
for array in (rows, jax.numpy.asarray(rows)):
    spread = mesh.spread("target_probs", array, over)
    print([shard.data.tolist() for shard in spread.addressable_shards])
spread = mesh.spread("draft_tokens", np.ones((2, 1), np.int32), over)
print([shard.data.tolist() for shard in spread.addressable_shards])
"""


def test_each_device_gets_its_own_rows_and_what_is_missing_is_an_empty_draft():
    two = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [0, 0]]]
    assert list(map(json.loads, in_a_process(3, EACH_ITS_OWN)[0].splitlines())) == [
        two,
        two,
        [[[1]], [[1]], [[-1]]],
    ]


NO_COPIES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from specdec_cli import kernel, mesh
from specdec_cli.rounding import precision
devices = tuple(jax.devices())
over = mesh.mesh_of(devices)
function = mesh.on_every_device(kernel.verify_rows_and_sums, over)
B, G, V = 8, 3, 1000
rows = NamedSharding(over, PartitionSpec(mesh.ROWS))
shapes = {
    "draft_tokens": (B, G), "draft_probs": (B, G, V), "target_probs": (B, G + 1, V),
    "accept_uniforms": (B, G), "sample_uniforms": (B,),
}
types = {"draft_tokens": jnp.int32}
arrays = {n: jax.ShapeDtypeStruct(s, types.get(n, jnp.float32), sharding=rows) for n, s in shapes.items()}
how = precision("float32", decimal=False, input_bits=32)
text = function.lower(**arrays, how=how, one_by_one=True).compile().as_text()
for word in ("all-gather", "all-reduce", "collective-permute", "all-to-all"):
    assert word not in text, word
assert "f32[2,3,1000]" in text and "f32[8,3,1000]" not in text
print("apart")
"""


def test_nothing_passes_between_devices():
    assert in_a_process(4, NO_COPIES)[0] == "apart\n"


def test_a_fault_is_named_by_its_row(tmp_path):
    step = json.loads((SAMPLES / "one_row.json").read_text())
    step = {name: step[name] * 5 for name in FIELDS}
    step["draft_probs"] = [*step["draft_probs"][:3], [[2.0] * len(row) for row in step["draft_probs"][0]]]
    step["draft_probs"].append(step["draft_probs"][0])
    (tmp_path / "step.json").write_text(json.dumps(step))
    one, two = (specdec_on(2, "run", tmp_path / "step.json", *more, code=2) for more in ([], ["--devices", "2"]))
    assert "draft_probs[3][0] sums to" in one[1]
    assert two == one


def test_what_is_kept_for_several_devices_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path))
    program = (
        "from specdec_cli import programs; from specdec_cli.cli import main\n"
        "real = programs._compile\n"
        "programs._compile = lambda *given: print('compiled') or real(*given)\n"
        "main()"
    )
    command = "run", SAMPLES / "one_row.json", "--devices", "2"
    (first, _), (second, _) = (in_a_process(2, program, *command) for _ in range(2))
    assert first == "compiled\n" + second


def test_devices_that_are_not_there_are_missed(process, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    ended = process("run", SAMPLES / "one_row.json", "--devices", "3")
    assert ended.code == 3
    assert "3 cpu devices were asked for, and JAX has 2 here" in ended.err
    assert "JAX_NUM_CPU_DEVICES=3" in ended.err


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_devices_is_1_or_more(specdec, given):
    ended = specdec("run", SAMPLES / "one_row.json", "--devices", given)
    assert ended.code == 2
    assert "neither a number of 1 or more nor 'all'" in " ".join(ended.err.replace("│", " ").split())


@pytest.mark.parametrize("given", [0, -1, 1.5, "many", False, True])
def test_verify_takes_a_number_or_all(given):
    with pytest.raises(specdec_cli.InputError, match="devices is"):
        specdec_cli.verify(**arrays(BASE), devices=given)
