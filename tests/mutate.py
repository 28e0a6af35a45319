"""Valid inputs, damaged at random: bytes, structure and values, of JSON, JSON Lines and NPZ.

Every mutator takes a NumPy random generator and returns bytes. Shapes are few, so that few kernels are compiled.
"""

import io
import json
import zipfile

import ml_dtypes
import numpy as np
from generate import batch

TOKENS = [
    b"NaN", b"-Infinity", b"1e999", b"-1", b"-0.0", b"1e-320", b"null", b"true", b'"0.5"', b"{}", b"[]", b"[", b"]",
    b"{", b"}", b",", b":", b'"', b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"0", b"1.0", b"1E+2",
    b".5", b"18446744073709551616", b"01", b'"draft_tokens":', b"//", b"'",
]  # fmt: skip
VALUES = [
    0, 1, -1, 2, 1.0, 0.5, -0.0, 5e-324, 1e-310, 1e308, 2**31, 2**32, 2**63, 2**64, -(2**63), 0.9999999999999999,
    True, False, None, "0.5", [], [0.5], {}, {"a": 1},
]  # fmt: skip
DTYPES = [
    "<f2",
    ">f2",
    "<f4",
    ">f4",
    "<f8",
    ">f8",
    "<i4",
    ">i8",
    "|u1",
    "|b1",
    "<c8",
    "<U3",
    "|V2",
    "|V4",
    "|O",
    "<M8[s]",
    "<f16",
]
HEADER_EDITS = [
    ("False", "True"), ("<f8", ">f8"), ("<f8", "<i8"), ("<f8", "<f4"), ("<f8", "|V8"), ("<f8", "|O"), ("<i4", ">i4"),
    ("<i4", "<u4"), ("<i4", "<f4"), ("(1,", "(2,"), ("(2,", "(1,"), (", 3)", ", 1, 3)"), ("2)", "2L)"), ("(", "(-"),
    ("(", "(1, "), ("(", "(99999999999, "), ("'shape'", "'shap'"), ("}", ""), ("descr", "xescr"), ("(", "["),
]  # fmt: skip
FIELDS = ["draft_tokens", "draft_probs", "target_probs", "accept_uniforms", "sample_uniforms"]


def valid(rng):
    """A small input of one of few shapes, as arrays."""
    shape = [(1, 1, 2), (2, 2, 3), (1, 0, 4)][rng.integers(3)]
    return batch(rng, "mixed", *shape)


def listed(fields):
    return {name: array.tolist() for name, array in fields.items()}


def pick(rng, items):
    return items[rng.integers(len(items))]


def damage(rng, data):
    """One to three edits of bytes: flip, insert, delete, repeat, cut, or put a token in."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        end = min(at + int(rng.integers(1, 12)), len(data))
        edit = rng.integers(6)
        if edit == 0 and data:
            data[at % len(data)] ^= 1 << int(rng.integers(8))
        elif edit == 1:
            data[at:at] = bytes(rng.integers(0, 256, rng.integers(1, 4), dtype=np.uint8))
        elif edit == 2:
            del data[at:end]
        elif edit == 3:
            data[at:at] = data[at:end]
        elif edit == 4 and rng.random() < 0.3:
            del data[at:]
        else:
            data[at:at] = pick(rng, TOKENS)
    return bytes(data)


def json_bytes(rng):
    return damage(rng, json.dumps(listed(valid(rng))).encode())


def json_structure(rng):
    """Something in the nested lists is replaced, dropped, repeated, wrapped or unwrapped."""
    document = listed(valid(rng))
    for _ in range(rng.integers(1, 3)):
        holder, key = document, pick(rng, FIELDS)
        while (
            isinstance(holder.get(key) if isinstance(holder, dict) else holder[key], list) and rng.random() < 0.7
        ):
            inner = holder[key]
            if not inner:
                break
            holder, key = inner, int(rng.integers(len(inner)))
        if isinstance(holder, dict) and key not in holder:
            continue
        edit = rng.integers(5)
        if edit == 0:
            holder[key] = pick(rng, VALUES)
        elif edit == 1:
            del holder[key]
        elif edit == 2 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif edit == 3:
            holder[key] = [holder[key]]
        elif isinstance(holder[key], list) and holder[key]:
            holder[key] = holder[key][0]
    return json.dumps(document).encode()


def json_lines(rng):
    lines = [json.dumps(listed(valid(rng))).encode() for _ in range(rng.integers(1, 5))]
    at = int(rng.integers(len(lines)))
    lines[at] = damage(rng, lines[at])
    return pick(rng, [b"\n", b"\r\n", b"\n\n", b" \n"]).join(lines)


def json_values(rng):
    """Numbers are replaced in the text, so that literals which no float prints turn up too."""
    text = json.dumps(listed(valid(rng)))
    numbers = [
        i for i, c in enumerate(text) if c.isdigit() and not text[i - 1].isdigit() and text[i - 1] not in ".e-"
    ]
    at = pick(rng, numbers)
    end = at
    while end < len(text) and text[end] in "0123456789.e-+":
        end += 1
    token = pick(
        rng, ["0", "1", "1.0", "0.1", "0.30000000000000004", "-0", "1e0", "5e-324", "1e-400", "1e309", "0.5e0"]
    )
    return (text[:at] + token + text[end:]).encode()


def saved(rng, fields):
    buffer = io.BytesIO()
    pick(rng, [np.savez, np.savez_compressed])(buffer, **fields)
    return buffer.getvalue()


def npz_bytes(rng):
    return damage(rng, saved(rng, valid(rng)))


def npz_members(rng):
    """The archive is sound, what is in its members is damaged: headers and data with right CRCs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        hit = pick(rng, FIELDS)
        for name, array in valid(rng).items():
            member = io.BytesIO()
            np.save(member, array)
            data = member.getvalue()
            if name == hit and rng.random() < 0.6:
                header = data[10:127].decode().rstrip()
                for _ in range(rng.integers(1, 3)):
                    header = header.replace(*pick(rng, HEADER_EDITS), 1)
                data = data[:10] + header.encode().ljust(117) + b"\n" + data[128:]
            elif name == hit and rng.random() < 0.3:
                data = damage(rng, data[:128]) + data[128:]
            elif name == hit:
                data = damage(rng, data)
            archive.writestr(name + pick(rng, [".npy", ".npy", ""]), data)
    return buffer.getvalue()


@np.errstate(all="ignore")
def npz_arrays(rng):
    """Arrays of other types, shapes, orders, or with a number replaced."""
    fields = valid(rng)
    for _ in range(rng.integers(1, 3)):
        name = pick(rng, FIELDS)
        array = fields[name]
        edit = rng.integers(6)
        if edit == 0 and array.size and array.dtype.kind in "if":
            array = array.copy()
            array.flat[rng.integers(array.size)] = pick(rng, [0, 1, -1, 2])
        elif edit == 1 and array.size and array.dtype.kind == "f":
            array = array.copy()
            array.flat[rng.integers(array.size)] = pick(
                rng, [np.nan, np.inf, -np.inf, 1.0, 5e-324, -5e-324, 1e308]
            )
        elif edit == 2:
            array = cast(array, pick(rng, DTYPES))
        elif edit == 3:
            array = np.asfortranarray(array)
        elif edit == 4:
            array = array[..., :-1] if array.ndim and rng.random() < 0.5 else array[None]
        elif array.ndim:
            array = array[0] if len(array) else array
        fields[name] = array
    return saved(rng, fields)


def cast(array, dtype):
    if array.dtype.kind not in "iuf":
        return array
    if dtype == "|V2":
        return array.astype(ml_dtypes.bfloat16)
    if dtype == "|V4":
        return np.ascontiguousarray(array.astype("<f4")).view("|V4")
    return array.astype(dtype)


MUTATORS = {
    f.__name__: f
    for f in (json_bytes, json_structure, json_lines, json_values, npz_bytes, npz_members, npz_arrays)
}
