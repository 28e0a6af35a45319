"""The step in plain fractions: an oracle that shares no code with the package.

It reads like the contract, and is slow.
"""

from fractions import Fraction


def number(x, decimal):
    """What a float in the input stands for."""
    return Fraction(repr(float(x))) if decimal else Fraction(float(x))


def draw(weights, s):
    """The smallest v whose cumulative share is greater than s; None without any weight."""
    total = sum(weights)
    if total == 0:
        return None
    cumulative = Fraction(0)
    for v, weight in enumerate(weights):
        cumulative += weight / total
        if cumulative > s:
            return v
    raise AssertionError("a cumulative of 1 is greater than any s below 1")


def residual(p, q):
    """max(p − q, 0), not normalised."""
    return [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]


def verify_row(tokens, draft, target, uniforms, s, decimal):
    """One row: (n, y, whether the residual was empty)."""
    length = sum(1 for token in tokens if token != -1)

    def read(row):
        return [number(x, decimal) for x in row]

    for i in range(length):
        p, q = read(target[i]), read(draft[i])
        x = tokens[i]
        u = number(uniforms[i], decimal)
        # u < p/q, with p/0 = infinity for p > 0 and no pass for p = 0
        accepted = (u < p[x] / q[x]) if q[x] > 0 else p[x] > 0
        if not accepted:
            token = draw(residual(p, q), number(s, decimal))
            if token is None:
                return i, draw(p, number(s, decimal)), True
            return i, token, False
    return length, draw(read(target[length]), number(s, decimal)), False


def verify(fields, decimal):
    """A batch of nested lists: the answer as the contract prints it, and the rows with an empty residual."""
    accepted, tokens, empty = [], [], []
    positions = len(fields["draft_tokens"][0]) if len(fields["draft_tokens"]) else 0
    for row in range(len(fields["draft_tokens"])):
        ids = [int(x) for x in fields["draft_tokens"][row]]
        n, y, no_residual = verify_row(
            ids,
            fields["draft_probs"][row],
            fields["target_probs"][row],
            fields["accept_uniforms"][row],
            fields["sample_uniforms"][row],
            decimal,
        )
        accepted.append(n)
        tokens.append([*ids[:n], y, *[-1] * (positions - n)])
        empty.append(no_residual)
    return {"num_accepted": accepted, "tokens": tokens}, empty


def whole_numbers(row, decimal):
    """A row of floats as integers with one common scale: 10^-400 or 2^-1074."""
    if decimal:
        return [int(Fraction(repr(x)) * 10**400) for x in row.tolist()]
    return [n * (2**1074 // d) for n, d in (x.as_integer_ratio() for x in row.tolist())]


def running_sums(p, q, decimal):
    """The cumulatives of max(p − q, 0), or of p where q is None, in whole numbers; for long rows."""
    weights = whole_numbers(p, decimal)
    if q is not None:
        weights = [max(a - b, 0) for a, b in zip(weights, whole_numbers(q, decimal), strict=True)]
    sums, running = [], 0
    for weight in weights:
        running += weight
        sums.append(running)
    return sums


def draw_from(sums, s, decimal):
    """The smallest v whose running sum is greater than s times the last."""
    threshold = number(s, decimal) * sums[-1]
    low, high = 0, len(sums) - 1  # sums never fall, so the first above the threshold is found by halving
    while low < high:
        middle = (low + high) // 2
        if sums[middle] > threshold:
            high = middle
        else:
            low = middle + 1
    return low
