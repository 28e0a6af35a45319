"""How the cost of `verify` grows with rows, vocabulary and positions: is it the bytes that count, and no more?

    python tests/benchmarks/growth.py [ROUNDS]        (make bench)

Along each axis, the median time of ROUNDS (11) calls with `validate=False` and `validate=True`, in turns, on
float32 JAX arrays that are on the device (see `steps.py`). Rates are in terms of the bytes that have to be read:
2·B·V·4 without validation (a row of p and one of q for each row of the batch), B·(2G + 1)·V·4 with it. Where a
line is level, the cost is in proportion to the bytes; where it rises, a call's own cost still shows.

The horizontal line is NumPy's float32 sum over an array of 1 GB, taken once after each point of the plot: the
median rate at which one thread reads memory. (`verify` uses all cores.) Printed is, for each axis, the worst time
for a byte over the best, among the points that read at least 64 MB (all points where none does). The plot goes
to tests/benchmarks/growth.svg.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from steps import Steps

import specdec_cli

AXES = {  # axis: [(B, G, V), …]
    "B": [(2**i, 2, 16_000) for i in range(13)],
    "V": [(64, 2, v) for v in (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_256, 256_000, 512_000, 2**20)],
    "G": [(64, g, 32_000) for g in (1, 2, 3, 4, 6, 8, 12, 16)],
}
LARGE = 1 << 26
MEANING = {
    "B": "rows, B (G = 2, V = 16,000)",
    "V": "vocabulary, V (B = 64, G = 2)",
    "G": "positions, G (B = 64, V = 32,000)",
}
STYLES = {"validate=False": "o-", "validate=True": "s--"}


def bytes_read(shape):
    rows, positions, vocabulary = shape
    return {
        "validate=False": 2 * rows * vocabulary * 4,
        "validate=True": rows * (2 * positions + 1) * vocabulary * 4,
    }


def seconds(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def measure(arrays, rounds):
    """Median seconds by option."""
    options = {name: name == "validate=True" for name in STYLES}
    turns = [
        {name: seconds(lambda on=on: specdec_cli.verify(*arrays, validate=on)) for name, on in options.items()}
        for _ in range(rounds + 1)  # the first compiles
    ]
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in options}


def points(axis, shapes, rounds):
    """The figures of each shape, one after another; rows are shared by the points along B."""
    largest = Steps(*shapes[-1]).arrays() if axis == "B" else None
    for shape in shapes:
        host = [array[: shape[0]] for array in largest] if largest else Steps(*shape).arrays()
        arrays = [jax.device_put(array) for array in host]
        found = measure(arrays, rounds)
        read = bytes_read(shape)
        yield {"shape": shape, "seconds": found, "gb_s": {name: read[name] / found[name] / 1e9 for name in found}}


def draw(figures, path):
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "specdec"}
    figure = Figure(figsize=(10, 3.4), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, (axis, found) in zip(panels, figures["axes"].items(), strict=True):
        along = [point["shape"]["BGV".index(axis)] for point in found]
        for name, style in STYLES.items():
            panel.plot(along, [point["gb_s"][name] for point in found], style, markersize=3.5, label=name)
        panel.axhline(figures["bandwidth_gb_s"], color="black", linestyle=":", label="NumPy sum, one thread")
        panel.set_xscale("log", base=2 if axis == "G" else 10)
        panel.set(yscale="log", xlabel=MEANING[axis])
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
        panel.minorticks_off()
    panels[0].set_ylabel("GB/s of the bytes to be read")
    panels[0].legend(loc="lower right", fontsize="small")
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main(rounds):
    big = np.ones(1 << 28, np.float32)
    figures, bandwidth = {"rounds": rounds, "axes": {}}, []
    print(f"{'B×G×V':>14} {'validate=False':>24} {'validate=True':>24}")
    for axis, shapes in AXES.items():
        figures["axes"][axis] = found = []
        for point in points(axis, shapes, rounds):
            bandwidth.append(big.nbytes / seconds(big.sum) / 1e9)
            found.append(point)
            cells = (
                f"{1000 * point['seconds'][name]:10.2f} ms {point['gb_s'][name]:6.2f} GB/s" for name in STYLES
            )
            print(f"{'×'.join(map(str, point['shape'])):>14} {' '.join(cells)}", flush=True)
        for name in STYLES:
            large = [point for point in found if bytes_read(point["shape"])[name] >= LARGE] or found
            rates = [point["gb_s"][name] for point in large]
            worst = max(rates) / min(rates)
            print(f"{axis}, {name}: a byte takes at most {worst:.2f} times the best, {len(rates)} points")
    figures["bandwidth_gb_s"] = statistics.median(bandwidth)
    print(f"NumPy's sum, one thread: {figures['bandwidth_gb_s']:.1f} GB/s")
    Path(".bench").mkdir(exist_ok=True)
    Path(".bench/growth.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(figures, Path(__file__).with_suffix(".svg"))
    print("written to .bench/growth.json and tests/benchmarks/growth.svg")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
