"""How far float32 running sums stray: what the error model of `specdec_cli/near_ties.py` is measured by.

    python tests/benchmarks/near_ties.py [ROWS]        (make bench)

ROWS (100) softmaxes of normal logits for each V and each standard deviation of the logits (0.1 is nearly flat, 5
is peaked), in float32, summed one after another in float32 (NumPy's cumsum) and in float64. Shown is the largest
error along a row, in units of 2^-24, beside what the model allows.
"""

import json
import sys
from pathlib import Path

import numpy as np

from specdec_cli.near_ties import running_sum_units


def largest_error(rng, vocabulary, deviation):
    weights = np.exp(deviation * rng.standard_normal(vocabulary))
    weights = (weights / weights.sum()).astype(np.float32)
    error = np.abs(np.cumsum(weights).astype(np.float64) - np.cumsum(weights.astype(np.float64)))
    return error.max() / 2**-24


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rng = np.random.default_rng(0)
    figures = []
    for vocabulary in (1000, 8192, 32_000, 128_256):
        for deviation in (0.1, 2, 5):
            errors = [largest_error(rng, vocabulary, deviation) for _ in range(rows)]
            found = {
                "V": vocabulary,
                "deviation": deviation,
                "rows": rows,
                "median": float(np.median(errors)),
                "largest": float(np.max(errors)),
                "model": running_sum_units(vocabulary),
            }
            figures.append(found)
            print(
                "V = {V:7,}, deviation {deviation:3}: "
                "median {median:6.1f}, largest {largest:6.1f}, model {model:6.1f}".format(**found)
            )
    Path(".bench").mkdir(exist_ok=True)
    Path(".bench/near_ties.json").write_text(json.dumps(figures, indent=1) + "\n")


main()
