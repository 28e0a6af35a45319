"""Whole processes: what `specdec` costs from start to end, beside what only loads the same thing.

    python tests/benchmarks/files.py [--turns 5] [--largest 5] [--folder FOLDER]        (make bench)

Each contestant is a process of its own, timed from outside (wall time) with the most memory it had, in turns with
its rival; shown are medians of TURNS (3 for the 4 GB file) after a first turn that is not counted: it fills the
cache of compiled programs and the system's cache of files, so that reading is not that of a disk.

    start-up        `specdec run` of a tiny sample beside a first `jax.jit` call; `--help` beside `import typer`
    NPZ             `specdec run` beside numpy.load, all members read and held; stored and deflated
    JSON            `specdec run` beside orjson.loads and numpy.array of each field

Inputs are float32 (see `steps.py`), G = 8 and V = 128,256 (JSON: G = 5). They are written a row at a time into
a folder that is removed at the end; files larger than LARGEST GB, or than a third of the free disk or of the
memory, are left out.
"""

# This process imports nothing large: on Linux, the peak of a process counts what the one that started it had.
import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

V = 128_256
ROWS_AND_POSITIONS = {  # name of the file: B, G
    "large.npz": (96, 8),
    "huge.npz": (480, 8),
    "deflated.npz": (16, 8),
    "lists.json": (4, 5),
}
LOAD_NPZ = "import numpy, sys\nwith numpy.load(sys.argv[1]) as npz: held = {name: npz[name] for name in npz.files}"
LOAD_JSON = """import numpy, orjson, sys
with open(sys.argv[1], "rb") as file: fields = orjson.loads(file.read())
held = {name: numpy.array(field) for name, field in fields.items()}"""
FIRST_JIT = "import jax; jax.jit(lambda x: x + 1)(1.0)"


def write(path, rows, positions):
    """Write an input; in a process of its own."""
    import zipfile

    import numpy as np
    import orjson
    from steps import Steps

    step = Steps(rows, positions, V)
    names = ("draft_tokens", "accept_uniforms", "sample_uniforms")
    small = {name: getattr(step, name) for name in names}
    large = {"draft_probs": (step.draft_row, positions), "target_probs": (step.target_row, positions + 1)}
    if path.suffix == ".json":
        fields = small | {name: [make(b) for b in range(rows)] for name, (make, _) in large.items()}
        path.write_bytes(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))
        return
    method = zipfile.ZIP_DEFLATED if path.name == "deflated.npz" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in small.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
        for name, (make, length) in large.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (rows, length, V)}
                np.lib.format.write_array_header_1_0(member, header)
                for b in range(rows):
                    member.write(make(b).tobytes())


def spent(arguments, cache):
    """(seconds, peak megabytes) of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "SPECDEC_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def compare(name, ours, rival, turns, cache):
    ours = ["-m", "specdec_cli", *ours]
    taken = [(spent(ours, cache), spent(rival, cache)) for _ in range(turns + 1)][1:]
    (seconds, peak), (rival_seconds, rival_peak) = (
        [statistics.median(of) for of in zip(*one, strict=True)] for one in zip(*taken, strict=True)
    )
    print(
        f"{name:26} {seconds:9.3f} s {rival_seconds:9.3f} s {seconds / rival_seconds:6.2f}"
        f" {peak:9.0f} MB {rival_peak:9.0f} MB {peak / rival_peak:6.2f}",
        flush=True,
    )
    return {
        "name": name,
        "turns": turns,
        "seconds": {"specdec": seconds, "rival": rival_seconds},
        "peak_megabytes": {"specdec": peak, "rival": rival_peak},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--largest", type=float, default=5.0, metavar="GB")
    parser.add_argument("--folder", type=Path, help="where a folder for the files is made, and removed")
    asked = parser.parse_args()
    sample = Path(__file__).parents[2] / "samples" / "one_row.json"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(f"{'':26} {'specdec':>11} {'rival':>11} {'ratio':>6} {'specdec':>12} {'rival':>12} {'ratio':>6}")
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        cache = Path(folder) / "programs"
        figures = [
            compare("start-up, beside jax.jit", ["run", sample], ["-c", FIRST_JIT], asked.turns, cache),
            compare("--help, beside typer", ["--help"], ["-c", "import typer"], asked.turns, cache),
        ]
        for name, (rows, positions) in ROWS_AND_POSITIONS.items():
            path = Path(folder) / name
            size = rows * (2 * positions + 1) * V * 4
            if size > asked.largest * 1e9 or 3 * size > min(shutil.disk_usage(folder).free, memory):
                print(f"{name}: {size / 1e9:.1f} GB are too many here: left out")
                continue
            writer = multiprocessing.get_context("spawn").Process(target=write, args=(path, rows, positions))
            writer.start()
            writer.join()
            if writer.exitcode:
                raise SystemExit(f"{name} could not be written")
            title = f"{name}, {path.stat().st_size / 1e6:,.0f} MB"
            rival = ["-c", LOAD_JSON if path.suffix == ".json" else LOAD_NPZ, path]
            turns = min(asked.turns, 3) if size > 2e9 else asked.turns
            figures.append(compare(title, ["run", path], rival, turns, cache))
            path.unlink()
    Path(".bench").mkdir(exist_ok=True)
    Path(".bench/files.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("written to .bench/files.json")


if __name__ == "__main__":
    main()
