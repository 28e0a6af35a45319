"""What exactness costs: how many ordinary rows take the exact way, and what one such row costs.

    python tests/benchmarks/exactness.py [ROWS]        (make bench)

Rows are a step of G = 1 each, with p, its bonus row and q drawn without replacement from 48 softmaxes of normal
logits (standard deviation 2), and fresh uniform noise: ordinary inputs, not chosen. "exact" counts the rows with
any decision made in exact arithmetic. With none found, the 95% upper limit of the rate is 3/ROWS.

Computed in float32, as on a device without float64, many draws are made again in float64 on the host: a fiftieth
of ROWS tells what that costs.

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
from specdec_cli.settings import Settings
from specdec_cli.verification import verify_batch

POOL, CHUNK = 48, 100
REPEATS = 11
CASES = (
    (np.float32, Reading.BINARY, "float64"),
    (np.float64, Reading.DECIMAL, "float64"),
    (np.float32, Reading.BINARY, "float32"),  # as on a device that has no more
)


def softmaxes(rng, vocabulary, dtype):
    rows = np.exp(2 * rng.standard_normal((POOL, vocabulary)))
    return (rows / rows.sum(axis=-1, keepdims=True)).astype(dtype)


def count_exact(rng, rows, pool, reading, computed_in):
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
        got = verify_batch(batch, Settings(validate=False), dtype=computed_in)
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
    heads = ("V", 8), ("input", 16), ("computed in", 12), ("rows", 8), ("exact", 7), ("rate below", 12)
    print("".join(f"{head:>{width}}" for head, width in heads), " kernel/row  exact/row")
    for vocabulary in (32_000, 128_256):
        for dtype, reading, computed_in in CASES:
            pool = softmaxes(rng, vocabulary, dtype)
            count = rows if computed_in == "float64" else rows // 50
            found, kernel_seconds = count_exact(rng, count, pool, reading, computed_in)
            exact_seconds = seconds_exactly(rng, pool, reading)
            limit = 3 / count if not found else (found + 2 * found**0.5 + 2) / count
            name = f"{np.dtype(dtype).name} {reading.value}"
            print(
                f"{vocabulary:>8}{name:>16}{computed_in:>12}{count:>8}{found:>7}{limit:>12.1e} "
                f"{kernel_seconds * 1e3:>8.3f} ms {exact_seconds * 1e3:>6.1f} ms",
                flush=True,
            )
            results.append(
                {
                    "vocabulary": vocabulary,
                    "input": name,
                    "computed_in": computed_in,
                    "rows": count,
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
