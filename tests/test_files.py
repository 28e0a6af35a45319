"""Files as users have them: byte-level cases from public bug reports, through the real command.

`data/files` holds the bytes; the ids are those of the reports they come from (see `SOURCES`).
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from helpers import BASE, BASE_ANSWER, DATA, arrays, changed, to_json, to_npz

FILES = DATA / "files"

SOURCES = {
    "SD-71": "https://github.com/vllm-project/tpu-inference/pull/441",
    "SD-79": "https://github.com/vllm-project/vllm/pull/41834",
    "SD-82": "https://github.com/vllm-project/vllm/pull/45060",
    "SD-90": "https://github.com/huggingface/swift-transformers/pull/384",
    "SD-92": "https://github.com/jax-ml/jax/issues/25498",
    "SD-93": "https://github.com/tenstorrent/tt-metal/issues/55542",
    "IO-00": "the small valid input that the others are made from",
    "IO-05": "https://github.com/ijl/orjson/issues/441",
    "IO-06": "https://github.com/sdebruyn/fabric-dw-mcp-cli/issues/831",
    "IO-07": "https://github.com/microsoft/playwright/pull/39420",
    "IO-08": "https://github.com/freedomofpress/securedrop-client/issues/1752",
    "IO-10": "https://github.com/simplejson/simplejson/issues/334",
    "IO-11": "https://github.com/open-contracting/ocdskit/issues/58",
    "IO-12": "https://github.com/numpy/numpy/issues/10866",
    "IO-13": "https://github.com/jax-ml/ml_dtypes/issues/41",
    "IO-14": "https://github.com/pynapple-org/pynapple/pull/607",
    "IO-16": "https://github.com/numpy/numpy/issues/22435",
    "IO-18": "https://github.com/sonos/tract/pull/655",
    "IO-20": "https://github.com/numpy/numpy/issues/20033",
    "IO-21": "https://github.com/scipy/scipy/issues/21670",
    "IO-22": "https://github.com/numpy/numpy/issues/23479",
    "IO-23": "https://github.com/frictionlessdata/tableschema-py/pull/216",
    "IO-25": "https://github.com/llohse/libnpy/issues/44",
    "CL-04": "https://github.com/pallets/click/issues/625",
    "CL-13": "https://github.com/joemc3/smart-abstract-resizer/issues/39",
    "CL-07": "https://github.com/BrianPugh/cyclopts/pull/448",
    "CL-08": "https://github.com/knostic/OpenAnt/pull/96",
    "CL-11": "https://github.com/chardet/chardet/issues/278",
}

ANSWERED = {
    "IO-00.json": BASE_ANSWER,
    "IO-00.npz": BASE_ANSWER,
    "IO-07-bom.json": BASE_ANSWER,
    "IO-11-a.json": BASE_ANSWER,  # a newline at the end
    "IO-11-b.json": BASE_ANSWER,  # indented, CRLF
    "IO-11-c.json": BASE_ANSWER * 2,  # twice, a line each: JSON Lines
    "IO-13.npz": BASE_ANSWER,  # bfloat16, stored as V2
    "IO-18.npz": b'{"num_accepted":[1],"tokens":[[1,2,-1,-1]]}\n',  # Fortran order
}

REFUSED = {
    "IO-05-nan.json": "target_probs[0][0][1] is NaN, which is not a JSON number (column 81)",
    "IO-05-inf.json": "target_probs[0][0][1] is Infinity, which is not a JSON number (column 81)",
    "IO-05-ninf.json": "target_probs[0][0][1] is -Infinity, which is not a JSON number (column 82)",
    "IO-06-p.json": "target_probs[0][0][1] is 1e400, beyond the range of a double (column 81)",
    "IO-06-u.json": "accept_uniforms[0][0] is 1e400, beyond the range of a double (column 123)",
    "IO-07-utf16.json": "is UTF-16 text, expected UTF-8",
    "IO-08.json": 'has the key "accept_uniforms" twice',
    "IO-12.json": "is compressed with gzip, expected JSON or NPZ",
    "IO-12.npz": "is compressed with gzip, expected JSON or NPZ",
    "IO-14.npz": "draft_tokens is an object array, expected numbers",
    "IO-16-a.npz": "is a damaged or truncated NPZ archive: File is not a zip file",
    "IO-16-b.npz": "target_probs is damaged: Bad CRC-32 for file 'target_probs.npy'",
    "IO-16-c.json": "is empty, expected JSON or NPZ",
    "IO-16-c.npz": "is empty, expected JSON or NPZ",
    "IO-16-d.npz": "is a single .npy array, expected an NPZ archive of five",
    "IO-20.npz": "has two members for accept_uniforms: accept_uniforms.npy and accept_uniforms.npy",
    "IO-21.json": "sample_uniforms is 0.5, of shape (), expected nested lists, 1 axis, (B,)",
    "IO-21.npz": "sample_uniforms has shape (), expected 1 axis, (B,)",
    "IO-23-a.json": "draft_tokens[0][0] is false, expected a token id, an integer",
    "IO-23-b.json": 'accept_uniforms[0][0] is the string "0.75", expected a number',
    "IO-23-c.json": "sample_uniforms[0] is null, expected a number",
    "IO-23-d.json": "target_probs[0][1][0] is true, expected a number",
    "IO-25.npz": "sample_uniforms has an invalid .npy header: 4294967280 bytes long",
    "SD-79.npz": "draft_probs[0][0][0] is NaN, expected a finite probability, 0 or more",
    "SD-82.npz": "target_probs[0][1][0] is NaN, expected a finite probability, 0 or more",
}


def test_every_file_is_expected_to_be_answered_or_refused():
    assert {path.name for path in FILES.iterdir()} == ANSWERED.keys() | REFUSED.keys()
    assert {name[:5] for name in ANSWERED.keys() | REFUSED.keys()} <= SOURCES.keys()


@pytest.mark.parametrize("name", ANSWERED)
def test_a_valid_file_is_answered_by_name_and_from_a_pipe(specdec, name):
    for ended in (specdec("run", FILES / name), specdec("run", "-", stdin=(FILES / name).read_bytes())):
        assert (ended.code, ended.out, ended.err) == (0, ANSWERED[name], "")


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_file_is_refused_with_a_sentence_by_name_and_from_a_pipe(specdec, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where IO-14's pickle would make a folder
    for shown, ended in (
        (FILES / name, specdec("run", FILES / name)),
        ("standard input", specdec("run", "-", stdin=(FILES / name).read_bytes())),
    ):
        assert (ended.code, ended.out) == (2, b"")
        assert ended.err.splitlines()[0] == f"error: {shown}: {REFUSED[name]}"
        assert "allow_pickle" not in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", [b"%s", b'{"draft_tokens": %s}'])
def test_very_deep_nesting_is_refused(specdec, wrap):  # IO-10
    ended = specdec("run", "-", stdin=wrap % (b"[" * 200_000 + b"]" * 200_000))
    assert (ended.code, ended.out) == (2, b"")
    assert "depth" in ended.err
    assert len(ended.err) < 500


def test_no_drafts_at_all_still_draw_a_token(specdec):  # SD-71
    fields = {
        "draft_tokens": np.zeros((2, 0), np.int32),
        "draft_probs": np.zeros((2, 0, 3)),
        "target_probs": np.array([[[0.5, 0.25, 0.25]], [[0.25, 0.25, 0.5]]]),
        "accept_uniforms": np.zeros((2, 0)),
        "sample_uniforms": np.array([0.25, 0.5]),
    }
    for data in (to_npz(fields), to_json(fields)):
        assert specdec("run", "-", stdin=data).out == b'{"num_accepted":[0,0],"tokens":[[0],[2]]}\n'


def one_bonus_each(p, noise):
    """Rows whose draft token 0 surely passes, and whose bonus token is drawn from p."""
    rows, vocabulary = len(noise), len(p)
    sure = np.zeros((rows, 1, vocabulary), np.float32)
    sure[..., 0] = 1
    return {
        "draft_tokens": np.zeros((rows, 1), np.int32),
        "draft_probs": sure,
        "target_probs": np.concatenate([sure, np.broadcast_to(p, (rows, 1, vocabulary))], axis=1),
        "accept_uniforms": np.full((rows, 1), 0.5),
        "sample_uniforms": np.array(noise),
    }


def test_tiny_equal_weights_before_zeros_are_drawn_right(specdec):  # SD-92
    p = np.zeros(200_000, np.float32)
    p[:150_000] = 1 / 150_000
    fields = one_bonus_each(p, [75000.5 / 150000, 149850.5 / 150000])
    assert json.loads(specdec("run", "-", stdin=to_npz(fields)).out)["tokens"] == [[0, 75_000], [0, 149_850]]


def test_a_long_tail_is_drawn_right(specdec):  # SD-93
    weights = 1 / (1 + np.arange(151_936, dtype=np.float64))
    fields = one_bonus_each((weights / weights.sum()).astype(np.float32), [0.25, 0.75, 0.96875])
    assert json.loads(specdec("run", "-", stdin=to_npz(fields)).out)["tokens"] == [[0, 12], [0, 6661], [0, 102777]]


@pytest.mark.parametrize(
    "command", ["cat '{}' | {} run -", "{1} run <(cat '{0}')", "{1} run - < '{0}'", "{1} run '{0}'"]
)
@pytest.mark.parametrize("name", ["IO-00.json", "IO-00.npz"])
def test_a_file_is_read_however_the_shell_hands_it_over(name, command):  # IO-22
    line = command.format(FILES / name, f"'{sys.executable}' -m specdec_cli")
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, BASE_ANSWER, b"")


def test_a_name_that_is_not_utf8_is_read_and_recorded(tmp_path):  # CL-11
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    with open(path, "wb") as file:
        file.write(to_json(BASE) + b"\n{}\n")
    command = [sys.executable.encode(), b"-m", b"specdec_cli", b"run", path]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    first, second = done.stdout.splitlines()
    assert (done.returncode, first + b"\n") == (2, BASE_ANSWER)
    assert json.loads(second)["input"] == f"{tmp_path}/\\xff.jsonl"
    assert done.stderr.startswith(b"error: " + path + b": line 2: is missing draft_tokens, ")


def test_a_disk_that_fills_up_leaves_the_output_as_it_was(tmp_path):  # CL-08
    out = tmp_path / "out.json"
    out.write_bytes(b"precious")
    command = f"ulimit -f 0; {sys.executable} -m specdec_cli run '{FILES / 'IO-00.json'}' -o '{out}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"error: {out} cannot be written: File too large\n"
    assert out.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_the_kernel_itself_reads_some_entry_for_an_id_out_of_range():  # JX-03
    """The checks are made before it is called; past them it neither crashes nor leaves the vocabulary."""
    import jax

    from specdec_cli import kernel
    from specdec_cli.rounding import precision

    how = precision("float64", decimal=False, input_bits=64)
    for token in (2, 10**6):
        fields = arrays(changed(draft_tokens=np.array([[token]], np.int32)))
        with jax.enable_x64(True):
            got = kernel.verify_rows(**fields, how=how, one_by_one=True)
        assert 0 <= int(got.tokens[0, got.num_accepted[0]]) < 2


# NPZ: what the contract accepts and refuses beyond the cases above


def savez(fields, save=np.savez):
    buffer = io.BytesIO()
    save(buffer, **fields)
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ">f2", ">f4", ">f8"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_float_type_byte_order_axis_order_and_compression_is_read(specdec, dtype, save, order):
    fields = {
        k: np.asarray(v.astype(dtype) if k.endswith("probs") else v, order=order) for k, v in arrays(BASE).items()
    }
    assert specdec("run", "-", stdin=savez(fields, save)).out == BASE_ANSWER


def test_members_may_lack_their_suffix_and_others_are_ignored(specdec):
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays(BASE).items():
            member = io.BytesIO()
            np.save(member, array)
            archive.writestr(name, member.getvalue())
        archive.writestr("note.txt", "not an array")
        archive.writestr("pickled.npy", b"\x93NUMPY nonsense")
    assert specdec("run", "-", stdin=buffer.getvalue()).out == BASE_ANSWER


def with_header(shape="(1, 2, 2)", descr="'<f8'", fortran="False", size=32):
    """An NPZ whose target_probs has a header of our own over `size` bytes of data."""
    import zipfile

    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    header = text.encode().ljust(117) + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(size)
    buffer = io.BytesIO(savez({k: v for k, v in arrays(BASE).items() if k != "target_probs"}))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("target_probs.npy", member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"shape": "(1, 2, 10**12)"}, "has an invalid .npy header"),
        ({"shape": "(1, 2, 1000000000000)"}, "has an invalid .npy header: shape (1, 2, 1000000000000)"),
        ({"shape": f"({'1, ' * 65})", "size": 8}, "has an invalid .npy header: shape (1, 1, "),
        ({"shape": "(0, 4611686018427387904)", "size": 0}, "has an invalid .npy header"),
        ({"shape": "(1, 2, 1000000000)"}, "claims shape (1, 2, 1000000000)"),
        ({"shape": "(1, 2, -2)"}, "has an invalid .npy header"),
        ({"shape": "(1, 2, 3)"}, "claims shape (1, 2, 3) of float64, 48 bytes, but the archive holds 32 for it"),
        ({"shape": "(True, 2, 2)"}, "has an invalid .npy header"),
        ({"descr": "'|O'"}, "is an object array, expected numbers"),
        ({"descr": "[('a', '<f8')]"}, "holds [('a', '<f8')] values, expected numbers"),
        ({"descr": "'|V8'"}, "holds |V8 values, expected numbers"),
        ({"descr": "'<c8'", "shape": "(1, 2, 2)"}, "holds complex64 values"),
        ({"descr": "'<M8[s]'"}, "holds datetime64[s] values"),
        ({"descr": "'|S8'"}, "holds bytes64 values"),
        ({"descr": "'<U2'"}, "holds str64 values"),
        ({"descr": "'|b1'", "shape": "(1, 2, 16)"}, "holds bool values"),
        ({"descr": "__import__('os').system('touch pwned')"}, "has an invalid .npy header"),
    ],
)
def test_a_header_is_not_believed(specdec, header, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = specdec("run", "-", stdin=with_header(**header))
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith(f"error: standard input: target_probs {said}")
    assert not list(tmp_path.iterdir())


def archive_with(edit):
    """A valid archive whose bytes are edited."""
    data = bytearray(to_npz(BASE))
    edit(data)
    return bytes(data)


def central_directory(data):
    return data.rindex(b"PK\x01\x02")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda d: d.__setitem__(central_directory(d) + 6, 84),
            "is a damaged or truncated NPZ archive: zip file version",
        ),
        (
            lambda d: d.__setitem__(slice(-6, -2), b"\xff\xff\xff\x00"),
            "is a damaged NPZ archive, or holds bytes before or after it",
        ),
        (
            lambda d: d.__setitem__(central_directory(d) + 8, 1),
            "sample_uniforms is encrypted, expected stored or deflated",
        ),
        (lambda d: d.__setitem__(central_directory(d) + 10, 14), "sample_uniforms is compressed by method 14"),
        (
            lambda d: d.__setitem__(
                slice(central_directory(d) + 20, central_directory(d) + 28), b"\xff\xff\xff\x7f" * 2
            ),
            "sample_uniforms ",  # its claim is refused, in words that Python's version decides,
        ),
        (
            lambda d: d.__setitem__(slice(0, 0), b"PK\x03\x04 before"),
            "is a damaged NPZ archive, or holds bytes before or after it",
        ),
        (lambda d: d.extend(b"after"), "is a damaged NPZ archive, or holds bytes before or after it"),
        (lambda d: d.extend(to_npz(BASE)), "is a damaged NPZ archive, or holds bytes before or after it"),
    ],
)
def test_a_damaged_or_padded_archive_is_refused(specdec, tmp_path, edit, said):
    path = tmp_path / "x.npz"
    path.write_bytes(archive_with(edit))
    for shown, ended in (
        (path, specdec("run", path)),
        ("standard input", specdec("run", "-", stdin=path.read_bytes())),
    ):
        assert (ended.code, ended.out) == (2, b"")
        assert ended.err.startswith(f"error: {shown}: {said}")


def test_a_name_that_is_not_utf8_in_an_archive_is_damage(specdec):
    def edit(data):
        at = central_directory(data)
        data[at + 9] |= 8  # says that the name is UTF-8
        data[at + 46] = 0xFF

    assert specdec("run", "-", stdin=archive_with(edit)).code == 2


def test_shapes_are_refused_before_gigabytes_are_unpacked(specdec):
    """4 GB of zeros in 4 MB, of the wrong shape."""
    import resource
    import zipfile

    fields = {**arrays(BASE), "accept_uniforms": np.zeros((1, 1))}
    buffer = io.BytesIO(savez({k: v for k, v in fields.items() if k != "target_probs"}))
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2, 50000000), }".ljust(117) + b"\n"
    with (
        zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("target_probs.npy", "w") as member,
    ):
        member.write(b"\x93NUMPY\x01\x00\x76\x00" + header)
        for _ in range(100):
            member.write(bytes(8_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = specdec("run", "-", stdin=buffer.getvalue())
    assert (ended.code, ended.err.split(":")[2]) == (
        2,
        " draft_probs has 2 vocabulary entries, target_probs has 50000000",
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_no_rows_of_very_long_drafts_take_no_memory(specdec):
    huge = 2**30
    fields = {
        "draft_tokens": np.zeros((0, huge), np.int32),
        "draft_probs": np.zeros((0, huge, 1)),
        "target_probs": np.zeros((0, huge + 1, 1)),
        "accept_uniforms": np.zeros((0, huge)),
        "sample_uniforms": np.zeros(0),
    }
    assert specdec("run", "-", stdin=savez(fields)).out == b'{"num_accepted":[],"tokens":[]}\n'


def test_many_empty_residuals_are_counted_not_listed(specdec):
    rows = 30
    fields = {
        "draft_tokens": np.full((rows, 1), 2),
        "draft_probs": np.tile([[[0.5, 0.5, 0.0]]], (rows, 1, 1)),
        "target_probs": np.tile([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]], (rows, 1, 1)),
        "accept_uniforms": np.zeros((rows, 1)),
        "sample_uniforms": np.full(rows, 0.5),
    }
    said = specdec("run", "-", stdin=savez(fields)).err.splitlines()
    assert len(said) == 11
    assert said[9].startswith("warning: standard input: row 9: empty residual at position 0")
    assert said[10] == "warning: standard input: empty residuals in 20 more rows"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_of_any_protocol_is_told_and_not_loaded(specdec, protocol):
    import pickle

    ended = specdec("run", "-", stdin=pickle.dumps(BASE, protocol))
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("error: standard input: is a pickle, expected JSON or NPZ\n")


def test_a_torch_file_and_positional_names_are_told_from_an_input(specdec):
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    assert "is a file of torch.save" in specdec("run", "-", stdin=buffer.getvalue()).err
    buffer = io.BytesIO()
    np.savez(buffer, *arrays(BASE).values())
    assert "found arr_0, arr_1, arr_2, arr_3, arr_4" in specdec("run", "-", stdin=buffer.getvalue()).err


# JSON: what orjson lets pass, and how a fault is placed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "\\u0061": 2}', 'has the key "a" twice'),
        ('{"id": {"b": 1, "b": 2}}', 'has the key "b" twice'),
        ('{"\\u001b[31m": 1, "\\u001b[31m": 2}', r'has the key "\u001b[31m" twice'),
        ("[1]", "holds a list, expected an object"),
        ("null", "holds null, expected an object"),
        ("{'a': 1}", r"is not valid JSON: .* at column \d"),
        (
            '{"draft_probs": [[[0.1], [None',
            r"is not valid JSON: .* at column 2\d, in draft_probs\[0\]\[1\]\[0\]",
        ),
        ('{"draft_probs": [[[0.1, .5]]]}', "is not valid JSON: "),
        ('{"draft_tokens": [[0', "is not valid JSON: it ends in the middle (column 21)"),
        ("   \n \t\r\n", "is empty, expected a JSON object"),
        ('{"draft_tokens": [[0]]} junk', 'has text after the JSON document: "junk" at column 25'),
        ("\x00\x01\x02\x03 binary", "is neither UTF-8 text nor NPZ: it starts with a NUL byte"),
        (b'{"id": "\xff"}', "is not UTF-8 text: byte 0xff at offset 8"),
    ],
)
def test_a_json_fault_is_placed_and_explained(specdec, text, said):
    ended = specdec("run", "-", stdin=text if isinstance(text, bytes) else text.encode())
    assert (ended.code, ended.out) == (2, b"")
    place, _, problem = ended.err.partition("error: standard input: ")
    # The words in the middle are orjson's, and differ between its versions.
    assert problem.startswith(said) or re.match(said, problem)
    assert place == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"draft_tokens": [[0, 1], [0]]}, "draft_tokens[1] is ragged: it has 1 entry, draft_tokens[0] has 2"),
        (
            {"target_probs": [[[0.5, 0.5], [0.5, 0.25, 0.25], [0.5, 0.5]]]},
            "target_probs[0][1] is ragged: it has 3 entries, target_probs[0][0] has 2",
        ),
        (
            {"draft_probs": [[0.5, 0.5]]},
            "draft_probs[0][0] is 0.5, expected a list: the field has 3 axes, (B, G, V)",
        ),
        ({"draft_probs": [[[[0.5]]]]}, "draft_probs[0][0][0] is a list, expected a number"),
        ({"draft_tokens": [[0.7]]}, "draft_tokens[0][0] is 0.7, expected a token id, an integer"),
        (
            {"draft_tokens": [[2**63]]},
            "draft_tokens[0][0] is 9223372036854775808, expected a token id of 32 bits",
        ),
        (
            {"accept_uniforms": [["x" * 99]]},
            f'accept_uniforms[0][0] is the string "{"x" * 20}…", expected a number',
        ),
        ({"sample_uniforms": {"0": 0.5}}, "sample_uniforms is an object, of shape (), expected nested lists"),
    ],
)
def test_a_wrong_leaf_or_nesting_is_named(specdec, fields, said):
    ended = specdec("run", "-", stdin=to_json(changed(**fields)))
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith(f"error: standard input: {said}")


def test_duplicates_in_different_objects_and_extra_keys_are_fine(specdec):
    text = to_json(changed(id='step \\" 7 {', meta={"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}]}))
    assert specdec("run", "-", stdin=text).out == BASE_ANSWER


# JSON Lines


LINE = to_json(BASE) + b"\n"
BAD = b'{"draft_tokens": NaN}\n'


def test_json_lines_give_a_line_for_a_line_and_a_record_for_a_bad_one(specdec, tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(LINE + b"\n" + BAD + b"  \r\n" + LINE + to_json(changed(sample_uniforms=[2])))
    ended = specdec("run", path)
    first, second, third, fourth = ended.out.splitlines(keepends=True)
    assert (ended.code, first, third) == (2, BASE_ANSWER, BASE_ANSWER)
    assert json.loads(second) == {
        "input": str(path),
        "error": {
            "line": 3,
            "field": "draft_tokens",
            "index": [],
            "problem": "is NaN, which is not a JSON number (column 18)",
            "hint": "every entry of a distribution is a finite number; see where it was computed",
        },
    }
    assert json.loads(fourth)["error"]["line"] == 6
    assert f"error: {path}: line 3: draft_tokens is NaN" in ended.err
    assert f"error: {path}: line 6: sample_uniforms[0] is 2.0" in ended.err


@pytest.mark.parametrize(
    "first", [BAD, b'{"draft_tokens": [[0\n', b"junk\n", b', 0.5]], "sample_uniforms": [0.5]}\n']
)
def test_a_bad_first_line_is_a_record_too_when_lines_follow(specdec, tmp_path, first):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(first + LINE + LINE)
    ended = specdec("run", path)
    record, *rest = ended.out.splitlines(keepends=True)
    assert (ended.code, rest) == (2, [BASE_ANSWER] * 2)
    assert json.loads(record)["error"]["line"] == 1


def test_one_bad_line_alone_is_one_bad_input(specdec):
    for data in (BAD, BAD.strip(), b"\n\n" + BAD + b"\n\n"):
        ended = specdec("run", "-", stdin=data)
        assert (ended.code, ended.out) == (2, b"")
        assert ended.err.startswith("error: standard input: draft_tokens is NaN")


def test_an_indented_object_is_one_object(specdec):
    for indent in (1, 4):
        data = json.dumps(BASE, indent=indent).encode()
        assert specdec("run", "-", stdin=data).out == BASE_ANSWER
    broken = data.replace(b"0.75", b"NaN")
    ended = specdec("run", "-", stdin=broken)
    assert (ended.code, ended.out) == (2, b"")
    assert "which is not a JSON number (line " in ended.err


def test_lines_go_to_a_jsonl_file_and_not_to_a_json_file(specdec, tmp_path):
    out = tmp_path / "out.jsonl"
    assert specdec("run", "-", "-o", out, stdin=LINE * 3).code == 0
    assert out.read_bytes() == BASE_ANSWER * 3
    for name in ("out.json", "out.npz"):
        ended = specdec("run", "-", "-o", tmp_path / name, stdin=LINE * 2)
        assert (ended.code, ended.out) == (2, b"")
        assert ended.err.startswith(
            f"error: there are several results, and {tmp_path / name} holds one\n hint: -o FILE"
        )
        assert not (tmp_path / name).exists()


def test_a_reader_that_stops_early_ends_it_quietly(tmp_path):  # CL-04
    path = tmp_path / "steps.jsonl"
    path.write_bytes(LINE * 2000)
    for unbuffered in ("", "1"):
        command = f"'{sys.executable}' -m specdec_cli run '{path}' | head -1; exit ${{PIPESTATUS[0]}}"
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, timeout=120, check=False, env=environment
        )
        assert (done.returncode, done.stdout, done.stderr) == (141, BASE_ANSWER, b"")


def test_no_input_an_empty_folder_or_an_unmatched_pattern_is_not_success(specdec, tmp_path):  # CL-13
    for arguments in ([], [tmp_path], [tmp_path / "*.json"]):
        ended = specdec("run", *arguments)
        assert ended.code == 2
        assert ended.err


@pytest.fixture
def conversation():
    """A running `specdec run -` that is spoken to through pipes."""
    with subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", "run", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("first", [LINE, BAD])
def test_each_line_is_answered_before_the_next_is_asked_for(conversation, first):
    for line in (first, LINE, BAD, LINE):
        conversation.stdin.write(line)
        conversation.stdin.flush()
        answer = conversation.stdout.readline()  # would hang, and fail by its time, if it waited for more input
        assert (answer == BASE_ANSWER) if line is LINE else ("error" in json.loads(answer))
    conversation.stdin.close()
    assert conversation.wait(timeout=30) == 2


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_the_output_as_it_was_and_nothing_beside_it(tmp_path, sent):  # CL-07, CL-08
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"precious")
    out.chmod(0o600)
    with subprocess.Popen(
        [sys.executable, "-m", "specdec_cli", "run", "-", "-o", str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        child.stdin.write(LINE * 3)
        child.stdin.flush()
        time.sleep(4)  # it has answered them, and waits for more
        child.send_signal(sent)
        _, err = child.communicate(timeout=30)
    assert child.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[sent]
    assert b"Traceback" not in err
    assert out.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]
