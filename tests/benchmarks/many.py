"""Many small inputs of many shapes: does compiling dominate?

    python tests/benchmarks/many.py [FILES]        (make bench)

One file as a whole process, against FILES (1,000) files of as many different shapes (B 1 to 4, G 0 to 5, V 4 to
60) as a whole process, in turns, medians of five: with the results on stdout, and in a folder. Once without the
cache of compiled programs, once with one that is filled. Half of the files are JSON, half NPZ.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TURNS = 5
FIELDS = ("draft_tokens", "draft_probs", "target_probs", "accept_uniforms", "sample_uniforms")


def write(path, rng, rows, positions, vocabulary):
    def softmax(*shape):
        weights = np.exp(2 * rng.standard_normal((*shape, vocabulary)))
        return weights / weights.sum(axis=-1, keepdims=True)

    arrays = (
        rng.integers(0, vocabulary, (rows, positions)),
        softmax(rows, positions),
        softmax(rows, positions + 1),
        rng.random((rows, positions)),
        rng.random(rows),
    )
    fields = dict(zip(FIELDS, arrays, strict=True))
    if path.suffix == ".npz":
        np.savez(path, **fields)
    else:
        path.write_text(json.dumps({name: array.tolist() for name, array in fields.items()}))


def seconds(cache, *arguments):
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "specdec_cli", "run", *arguments],
        env={**os.environ, **cache},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rng = np.random.default_rng(0)
    shapes = [(b, g, v) for b in range(1, 5) for g in range(6) for v in range(4, 61)]
    chosen = [shapes[i] for i in rng.permutation(len(shapes))[:count]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{i:04}.{'npz' if i % 2 else 'json'}" for i in range(len(chosen))]
        for path, shape in zip(files, chosen, strict=True):
            write(path, rng, *shape)
        figures = {"files": len(files)}
        for state, cache in {
            "off": {"SPECDEC_NO_CACHE": "1"},
            "filled": {"SPECDEC_CACHE_DIR": str(folder / "programs")},
        }.items():
            seconds(cache, files[0])
            turns = []
            for turn in range(TURNS):
                results = f"{folder}/results-{state}-{turn}/"
                alone, together = seconds(cache, files[0]), seconds(cache, *files)
                turns.append((alone, together, seconds(cache, "-q", *files, "-o", results)))
            one, many, into_folder = map(statistics.median, zip(*turns, strict=True))
            figures[state] = {"one": one, "many": many, "into_folder": into_folder}
            print(f"cache {state:6}: one file {one:.2f} s")
            print(f"              {len(files):,} files {many:.2f} s, {many / one:.1f} times")
            print(f"              into a folder {into_folder:.2f} s, {into_folder / one:.1f} times")
    Path(".bench").mkdir(exist_ok=True)
    Path(".bench/many.json").write_text(json.dumps(figures, indent=1) + "\n")


main()
