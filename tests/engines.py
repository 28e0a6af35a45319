"""Engines that are wrong in one way each, in plain Python: what `specdec check` must tell apart.

They share no code with the package. Each is written as an engine would write it, normalising its residual, and
reads its input in float64.
"""

import math

import ml_dtypes
import numpy as np

MISTAKES = {
    "<= for < in the accept test",
    "an epsilon in the ratio",
    "p and q swapped",
    "correction drawn from p instead of the residual",
    "residual not renormalised",
    "softmax of the residual",
    "residual of the wrong position",
    "bonus token drawn after a rejection",
    "bonus row clamped to the last draft row",
    "passes summed after the first failure",
    "u reused for the draw",
    "s shifted by a row",
    ">= for > in the draw",
    "draft rows misordered between requests",
    "argmax instead of sampling",
    "float32 cumulative sums",
    "bfloat16 cumulative sums",
}


def ordinary(rng, rows=200, positions=4, vocabulary=24, dyadic=False, sharpness=2.0):
    """An input as engines have them: draft tokens sampled from q, uniform noise; or full of ties."""

    def one():
        if dyadic:
            return np.diff([0, *np.sort(rng.integers(0, 17, vocabulary - 1)), 16]) / 16
        row = np.exp(sharpness * rng.standard_normal(vocabulary))
        return row / row.sum()

    draft = np.array([[one() for _ in range(positions)] for _ in range(rows)])
    target = np.array([[one() for _ in range(positions + 1)] for _ in range(rows)])
    for row, i in np.ndindex(rows, positions):  # a draft model that is worth having
        if rng.random() < 0.6:
            target[row, i] = (target[row, i] + 7 * draft[row, i]) / 8
    tokens = np.array([[rng.choice(vocabulary, p=draft[row, i]) for i in range(positions)] for row in range(rows)])
    steps = 16 if dyadic else 2**24
    return {
        "draft_tokens": tokens.astype(np.int32),
        "draft_probs": draft,
        "target_probs": target,
        "accept_uniforms": rng.integers(0, steps, (rows, positions)) / steps,
        "sample_uniforms": rng.integers(0, steps, rows) / steps,
    }


def first_above(weights, s, at_least=False):
    total = 0.0
    for token, weight in enumerate(weights):
        total += weight
        if total > s or (at_least and total >= s):
            return token
    return len(weights) - 1


def normalised(weights):
    total = math.fsum(weights)
    return [weight / total for weight in weights] if total else None


def rounded_sums(weights, s, dtype):
    above = np.add.accumulate(np.array(weights).astype(dtype)) > dtype(s)
    return int(np.argmax(above))


def engine(fields, mistake="", rng=None):
    """The answer of an engine that makes a mistake, or none; with `rng`, it draws its last token with that."""
    rows, positions = fields["draft_tokens"].shape
    accepted, emitted = [], []
    for row in range(rows):
        tokens = [int(x) for x in fields["draft_tokens"][row] if x >= 0]
        u, s = fields["accept_uniforms"][row].tolist(), float(fields["sample_uniforms"][row])
        q = fields["draft_probs"][row].tolist()
        p = fields["target_probs"][row].tolist()
        if mistake == "draft rows misordered between requests":
            q = fields["draft_probs"][row - 1].tolist()
        if mistake == "s shifted by a row":
            s = float(fields["sample_uniforms"][row - 1])

        passes = []
        for i, x in enumerate(tokens):
            top, bottom = (q[i][x], p[i][x]) if mistake == "p and q swapped" else (p[i][x], q[i][x])
            if mistake == "an epsilon in the ratio":
                bottom += 1e-3
            if mistake == "<= for < in the accept test":
                passes.append(u[i] * bottom <= top)
            else:
                passes.append(u[i] * bottom < top)
        n = sum(passes) if mistake == "passes summed after the first failure" else [*passes, False].index(False)

        at = n
        if mistake == "residual of the wrong position" and 0 < n < len(tokens):
            at = n - 1
        if n == len(tokens):
            clamped = mistake == "bonus row clamped to the last draft row" and n > 0
            weights = normalised(p[n - 1 if clamped else n])
        else:
            signed = [b - a for a, b in zip(q[at], p[at], strict=True)]
            if mistake == "p and q swapped":
                signed = [-x for x in signed]
            rest = [max(x, 0.0) for x in signed]
            weights = normalised(rest) or normalised(p[n])
            if mistake == "correction drawn from p instead of the residual":
                weights = normalised(p[n])
            elif mistake == "residual not renormalised":
                weights = rest
            elif mistake == "softmax of the residual":
                weights = normalised([math.exp(x) for x in rest])
            elif mistake == "bonus token drawn after a rejection":
                weights = normalised(p[len(tokens)])
        if mistake == "u reused for the draw" and n < len(tokens):
            s = u[n]

        if rng is not None:
            token = int(rng.choice(len(weights), p=weights))
        elif mistake == "argmax instead of sampling":
            token = max(range(len(weights)), key=weights.__getitem__)
        elif mistake == "float32 cumulative sums":
            token = rounded_sums(weights, s, np.float32)
        elif mistake == "bfloat16 cumulative sums":
            token = rounded_sums(weights, s, ml_dtypes.bfloat16)
        else:
            token = first_above(weights, s, at_least=mistake == ">= for > in the draw")
        accepted.append(n)
        emitted.append([*tokens[:n], token, *[-1] * (positions - n)])
    return {"num_accepted": accepted, "tokens": emitted}
