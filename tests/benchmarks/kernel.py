"""`verify` against what one would write instead, on arrays that are on the device already.

    python tests/benchmarks/kernel.py [--device gpu] [--rounds 21]        (make bench, make bench-gpu)

Contestants, each on the same float32 arrays (see `steps.py`), taking turns in random order (PyTorch by itself,
after them); shown are medians of ROUNDS after one that compiles. Every turn waits for its results.

    verify     specdec_cli.verify(..., validate=False): exact, its rows shared between the cores where that pays
    one core   the same with one thread of its own
    textbook   the step as papers and engines have it, in one `jax.jit`, in float32: u < p/q, the residual or the
               bonus row, normalised, a cumulative sum, the first entry above s
    torch      the same in PyTorch, eager, with as many threads as there are cores
    sum        NumPy's float32 sum of row n of p and row min(n, G - 1) of q for every b, each where it lies: one
               thread that does nothing but read what a draw needs (on a GPU: gathered and summed by JAX)
    validated  specdec_cli.verify(..., validate=True), which reads all rows, and beside it a sum of all

A = verify/sum, B = textbook/verify, C = torch/verify, D = validated/sum of all, E = one core/verify; nan where
PyTorch, or its support of the GPU, is not installed. `num_accepted` must be the same everywhere, except where u·q
and p are closer than float32 tells apart. "mis-drawn" counts the rows of the textbook and of PyTorch in which a
running sum in float32 comes to another token than exact arithmetic does.
"""

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from steps import Steps

import specdec_cli
from specdec_cli import compute
from specdec_cli.threads import number_of_cores

try:
    import torch
except ImportError:
    torch = None

SHAPES = (32, 5, 128_256), (64, 5, 32_000), (256, 4, 32_000), (1, 5, 128_256)
NAMES = ("verify", "one core", "sum", "textbook", "torch", "validated", "sum of all")


@jax.jit
def textbook(x, q, p, u, s):
    rows, positions, _ = q.shape
    q_x = jnp.take_along_axis(q, x[:, :, None], axis=2)[:, :, 0]
    p_x = jnp.take_along_axis(p[:, :positions], x[:, :, None], axis=2)[:, :, 0]
    n = jnp.cumprod((u < p_x / q_x).astype(jnp.int32), axis=1).sum(axis=1)
    p_n = p[jnp.arange(rows), n]
    q_n = q[jnp.arange(rows), jnp.minimum(n, positions - 1)]
    r = jnp.where((n < positions)[:, None], jnp.maximum(p_n - q_n, 0), p_n)
    c = jnp.cumsum(r / r.sum(axis=1, keepdims=True), axis=1)
    y = jnp.argmax(c > s[:, None], axis=1)
    at = jnp.arange(positions + 1)
    kept = jnp.where(at < n[:, None], jnp.pad(x, ((0, 0), (0, 1))), -1)
    return n, jnp.where(at == n[:, None], y[:, None], kept)


def in_torch(x, q, p, u, s):
    rows, positions, _ = q.shape
    every, at = torch.arange(rows, device=q.device), torch.arange(positions + 1, device=q.device)
    q_x = q.gather(2, x[:, :, None])[:, :, 0]
    p_x = p[:, :positions].gather(2, x[:, :, None])[:, :, 0]
    n = (u < p_x / q_x).cumprod(dim=1).sum(dim=1)
    p_n, q_n = p[every, n], q[every, n.clamp(max=positions - 1)]
    r = torch.where((n < positions)[:, None], (p_n - q_n).clamp(min=0), p_n)
    c = (r / r.sum(dim=1, keepdim=True)).cumsum(dim=1)
    y = torch.searchsorted(c, s[:, None], right=True)
    kept = torch.where(at < n[:, None], torch.nn.functional.pad(x, (0, 1)), -1)
    return n, torch.where(at == n[:, None], y, kept)


@jax.jit
def sums_on_device(p, q, n):
    rows = jnp.arange(len(n))
    return p[rows, n].sum(axis=1), q[rows, jnp.minimum(n, q.shape[1] - 1)].sum(axis=1)


def on_one_core(arrays):
    compute.number_of_cores = lambda: 1
    jax.block_until_ready(specdec_cli.verify(*arrays, validate=False))
    compute.number_of_cores = number_of_cores


def contestants(arrays, n, device):
    """name → a call that waits for its results."""
    _, q, p, *_ = arrays
    calls = {
        "verify": lambda: jax.block_until_ready(specdec_cli.verify(*arrays, validate=False)),
        "one core": lambda: on_one_core(arrays),
        "textbook": lambda: jax.block_until_ready(textbook(*arrays)),
        "validated": lambda: jax.block_until_ready(specdec_cli.verify(*arrays, validate=True)),
        "sum": lambda: jax.block_until_ready(sums_on_device(p, q, n)),
        "sum of all": lambda: jax.block_until_ready([jnp.sum(p, axis=2), jnp.sum(q, axis=2)]),
    }
    if device.platform == "cpu":
        p, q = np.asarray(p), np.asarray(q)  # the same memory
        read = [row for b, i in enumerate(n.tolist()) for row in (p[b, i], q[b, min(i, q.shape[1] - 1)])]
        calls["sum"] = lambda: [row.sum() for row in read]
        calls["sum of all"] = lambda: (p.sum(axis=2), q.sum(axis=2))
    if torch and (device.platform == "cpu" or torch.cuda.is_available()):
        tensors = [torch.from_dlpack(array) for array in arrays]
        tensors[0] = tensors[0].long()
        wait = torch.cpu.synchronize if device.platform == "cpu" else torch.cuda.synchronize
        calls["torch"] = lambda: (in_torch(*tensors), wait())[0]
    return calls


def near_ties(arrays):
    """The rows with an accept test that float32 may decide otherwise: it rounds p/q once."""
    x, q, p, u, _ = (np.asarray(array) for array in arrays)
    q_x, p_x = (np.take_along_axis(a[:, : x.shape[1]], x[:, :, None], 2)[:, :, 0].astype(float) for a in (q, p))
    return (np.abs(u * q_x - p_x) <= 2.0**-22 * p_x).any(axis=1)


def take_turns(names, calls, rounds):
    """Milliseconds by name, a first turn not counted."""
    times = {name: [] for name in names}
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(names)  # so that nobody always finds the same rows in the caches
        for name in names:
            start = time.perf_counter()
            calls[name]()
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    return times


def measure(shape, device, rounds):
    arrays = jax.device_put(Steps(*shape).arrays(), device)
    answer = specdec_cli.verify(*arrays)
    exact_n, exact_tokens = map(np.asarray, answer.values())
    calls = contestants(arrays, answer["num_accepted"], device)
    found = {"shape": shape, "accepted": int(exact_n.sum()), "mis_drawn": {}}
    for name in [name for name in ("textbook", "torch") if name in calls]:
        n, tokens = (np.asarray(part.cpu() if name == "torch" else part) for part in calls[name]())
        same = n == exact_n
        assert (same | near_ties(arrays)).all(), (shape, name)
        found["mis_drawn"][name] = int((same & (tokens != exact_tokens).any(axis=1)).sum())
    # PyTorch's threads spin for a while after a call, which would cost the next contestant: it comes last.
    times = take_turns([name for name in calls if name != "torch"], calls, rounds)
    times |= take_turns([name for name in calls if name == "torch"], calls, rounds)
    return {**found, "milliseconds": {name: statistics.median(of) for name, of in times.items()}}


def line_of(found):
    took = dict.fromkeys(NAMES, math.nan) | found["milliseconds"]
    times = "".join(f"{took[name]:11.2f}" for name in NAMES)
    ratios = (
        ("verify", "sum"),
        ("textbook", "verify"),
        ("torch", "verify"),
        ("validated", "sum of all"),
        ("one core", "verify"),
    )
    factors = "".join(f"{took[one] / took[other]:6.2f}" for one, other in ratios)
    drawn = "/".join(str(count) for count in found["mis_drawn"].values())
    return f"{'×'.join(map(str, found['shape'])):>12}{times}{factors}{drawn:>11}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    asked = parser.parse_args()
    try:
        device = jax.devices(asked.device)[0]
    except RuntimeError:
        print(f"JAX finds no {asked.device} here: nothing is measured.")
        return
    jax.config.update("jax_default_device", device)
    if torch:
        torch.set_num_threads(number_of_cores())
    else:
        print("PyTorch is not installed: the extra `bench` brings it (pip install -e '.[bench]').")
    print(f"{device.device_kind}, {number_of_cores()} cores, jax {jax.__version__}; milliseconds")
    heads = "".join(f"{name:>11}" for name in NAMES) + "".join(f"{letter:>6}" for letter in "ABCDE")
    print(f"{'B×G×V':>12}{heads}  mis-drawn")
    steps = []
    for shape in SHAPES:
        steps.append(measure(shape, device, asked.rounds))
        print(line_of(steps[-1]), flush=True)
    figures = {"device": device.device_kind, "cores": number_of_cores(), "rounds": asked.rounds, "steps": steps}
    out = Path(f".bench/kernel{'' if asked.device == 'cpu' else '_gpu'}.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
