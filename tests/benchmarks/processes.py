"""How `specdec run` grows with processes, on one machine.

    python tests/benchmarks/processes.py [--rounds 3] [--gigabytes 4] [--folder FOLDER]        (make bench)

Contestants are whole runs from start to end, by processes over loopback with one core each (`sched_setaffinity`),
as many as there are cores, in turns; shown are medians of ROUNDS after a first that is not counted. Inputs are
float32, G = 8 and V = 128,256 (see `steps.py`):

    rows      one stored NPZ of that many GB, whose rows are shared
    files     a quarter of it eight times, as files that are shared whole
    nothing   one tiny input: what it takes to start, to find each other and to part

"sent" is all that the processes told each other, but for JAX's own few messages. Beside them stands one process
without --distributed, with one core and with all. The files are in the system's cache: reading is not a disk's.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from files import V, write

from specdec_cli.threads import number_of_cores

POSITIONS = 8
ROW_BYTES = (2 * POSITIONS + 1) * V * 4
CODE = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv.pop(1).split(",")))
from specdec_cli import cluster
sent, send, leave = [], cluster.Cluster.send, cluster.Cluster.leave
cluster.Cluster.send = lambda self, key, data: (sent.append(len(data)), send(self, key, data))
cluster.Cluster.leave = lambda self: (print(sum(sent), file=sys.stderr), leave(self))
from specdec_cli.__main__ import main
main()
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(number, cores, inputs, cache):
    """Seconds, bytes that were sent, and the answer; by one process with those cores, or several with one each."""
    place = "--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", str(number)
    begun, processes = time.perf_counter(), []
    for process in range(number):
        several = ["--distributed", *place, "--process-id", str(process)] if number > 1 else []
        mine = cores if number == 1 else cores[process : process + 1]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", CODE, ",".join(map(str, mine)), "run", "--quiet", *inputs, *several],
                env={**os.environ, "SPECDEC_CACHE_DIR": str(cache)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    written = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(b"".join(err for _, err in written).decode())
    sent = sum(int(err) for _, err in written) if number > 1 else 0
    return time.perf_counter() - begun, sent, written[0][0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="where a folder for the files is made, and removed")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = int(asked.gigabytes * 1e9 / ROW_BYTES)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        if len(cores) < 2 or 2 * rows * ROW_BYTES > min(shutil.disk_usage(folder).free, memory):
            print("one core, or too little room: nothing is measured.")
            return
        large, quarter = Path(folder) / "large.npz", Path(folder) / "quarter.npz"
        for path, count in ((large, rows), (quarter, rows // 4)):
            writer = multiprocessing.get_context("spawn").Process(target=write, args=(path, count, POSITIONS))
            writer.start()
            writer.join()
        sample = Path(__file__).parents[2] / "samples" / "one_row.json"
        work = {"rows": ([large], rows), "files": ([quarter] * 8, rows // 4 * 8), "nothing": ([sample], 1)}
        numbers = [2**n for n in range(1, len(cores).bit_length())]
        ways = {"one core": (1, cores[:1]), "all cores": (1, cores)}
        ways |= {f"{number} processes": (number, cores) for number in numbers}
        print(f"{len(cores)} cores; seconds, {rows} rows of {ROW_BYTES / 1e6:.1f} MB; bytes sent a row")
        print(f"{'':10}" + "".join(f"{name:>14}" for name in ways) + f"{'sent':>8}")
        figures = {}
        for name, (inputs, count) in work.items():
            taken, expected = {way: [] for way in ways}, None
            for turn in range(asked.rounds + 1):
                for way, (number, given) in ways.items():
                    seconds, sent, answer = run(number, given, inputs, Path(folder) / "programs")
                    assert expected in (None, answer)
                    expected = answer
                    if turn:
                        taken[way].append(seconds)
            figures[name] = {"rows": count, "seconds": {way: statistics.median(of) for way, of in taken.items()}}
            figures[name]["bytes_sent_a_row"] = sent / count
            times = "".join(f"{seconds:14.2f}" for seconds in figures[name]["seconds"].values())
            print(f"{name:10}{times}{sent / count:8.0f}", flush=True)
    out = Path(".bench/processes.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"cores": number_of_cores(), "row_bytes": ROW_BYTES, **figures}, indent=1) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
