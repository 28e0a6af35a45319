"""What exactness costs: how many ordinary rows take the exact way, and what one such row costs.

    python tests/benchmarks/exactness.py [ROWS]        (make bench)

Rows are a step of G = 1 each, with p, its bonus row and q drawn without replacement from 48 softmaxes of normal
logits (standard deviation 2), and fresh uniform noise: ordinary inputs, not chosen. "exact" counts the rows with
any decision made in exact arithmetic. With none found, the 95% upper limit of the rate is 3/ROWS.

The cost of a row is the median time of `exact.draw` over such residuals, beside the time that the kernel takes a
row in the same run.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from specdec_cli import exact
from specdec_cli.batch import Reading, make_batch
from specdec_cli.verification import verify_batch

POOL, CHUNK = 48, 100
REPEATS = 11


def softmaxes(rng, vocabulary, dtype):
    rows = np.exp(2 * rng.standard_normal((POOL, vocabulary)))
    return (rows / rows.sum(axis=-1, keepdims=True)).astype(dtype)


def count_exact(rng, rows, pool, reading):
    """(rows with an exact decision, seconds a row in `verify_batch`)."""
    vocabulary = pool.shape[1]
    found, spent, timed = 0, 0.0, 0
    for at in range(0, rows, CHUNK):
        size = min(CHUNK, rows - at)
        index = np.array([rng.choice(POOL, 3, replace=False) for _ in range(size)])
        batch = make_batch(
            {
                "draft_tokens": rng.integers(0, vocabulary, (size, 1)),
                "draft_probs": pool[index[:, :1]],
                "target_probs": pool[index[:, 1:]],
                "accept_uniforms": rng.random((size, 1)),
                "sample_uniforms": rng.random(size),
            },
            reading=reading,
        )
        start = time.perf_counter()
        got = verify_batch(batch, validate=False)
        if at:  # the first chunk compiles
            spent += time.perf_counter() - start
            timed += size
        found += int((got.draw_exact | got.accept_exact.any(axis=1)).sum())
    return found, spent / max(timed, 1)


def seconds_exactly(rng, pool, reading):
    """Median seconds of one exact correction draw."""
    times = []
    for _ in range(REPEATS):
        p, q = pool[rng.choice(POOL, 2, replace=False)]
        start = time.perf_counter()
        exact.draw(p, q, float(rng.random()), reading)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(rows):
    rng = np.random.default_rng(2026)
    results = []
    print(
        f"{'V':>8} {'input':>16} {'rows':>8} {'exact':>6} {'rate below':>11} {'kernel/row':>11} {'exact/row':>10}"
    )
    for vocabulary in (32_000, 128_256):
        for dtype, reading in ((np.float32, Reading.BINARY), (np.float64, Reading.DECIMAL)):
            pool = softmaxes(rng, vocabulary, dtype)
            found, kernel_seconds = count_exact(rng, rows, pool, reading)
            exact_seconds = seconds_exactly(rng, pool, reading)
            limit = 3 / rows if not found else (found + 2 * found**0.5 + 2) / rows
            name = f"{np.dtype(dtype).name} {reading.value}"
            print(
                f"{vocabulary:>8} {name:>16} {rows:>8} {found:>6} {limit:>11.1e} "
                f"{kernel_seconds * 1e3:>8.3f} ms {exact_seconds * 1e3:>7.1f} ms",
                flush=True,
            )
            results.append(
                {
                    "vocabulary": vocabulary,
                    "input": name,
                    "rows": rows,
                    "exact_rows": found,
                    "rate_below": limit,
                    "kernel_seconds_per_row": kernel_seconds,
                    "exact_seconds_per_row": exact_seconds,
                }
            )
    out = Path(".bench/exactness.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
