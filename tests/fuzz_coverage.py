"""Coverage-guided fuzzing of the readers with atheris, where that installs (`make fuzz`).

    python tests/fuzz_coverage.py [SECONDS]

Starts from valid inputs of every format. Anything but a batch or an `InputError` is a fault, and so is an input
that takes over 5 seconds or a gigabyte; libFuzzer then leaves the bytes in a file `crash-…` and says so.
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["specdec_cli.readers", "specdec_cli.batch"]):
    from specdec_cli.errors import InputError
    from specdec_cli.readers import documents

sys.path.insert(0, str(Path(__file__).parent))
import mutate

FOLDER = Path(tempfile.mkdtemp())


def one_input(data):
    path = FOLDER / "input"
    path.write_bytes(data)
    with suppress(InputError):
        for document in documents(str(path)):
            with suppress(InputError):
                document.batch()


def main():
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for seed in range(20):
        fields = mutate.valid(np.random.default_rng(seed))
        np.savez(corpus / f"{seed}.npz", **fields)
        np.savez_compressed(corpus / f"{seed}-deflated.npz", **fields)
        (corpus / f"{seed}.json").write_bytes(mutate.json_values(np.random.default_rng(seed)))
        (corpus / f"{seed}.jsonl").write_bytes(mutate.json_lines(np.random.default_rng(seed)))
    limits = ["-timeout=5", "-rss_limit_mb=1024", "-max_len=8192", f"-max_total_time={seconds}"]
    atheris.Setup([sys.argv[0], str(corpus), *limits], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
