"""How wrong the kernel's floats can be: proven bounds on its two decisions.

The kernel decides with rounded numbers. A decision whose margin exceeds the bound given here is the one that
exact arithmetic takes; every other is taken again, a draw in float64 if it was in float32, and then by `exact.py`.
This is the filter of Shewchuk's adaptive predicates (1997, "Adaptive Precision Floating-Point Arithmetic and Fast
Robust Geometric Predicates").

Notation. x is what a number in the input means (its binary value, or the decimal that was written), x' is what
the kernel computes with.

    ε   unit roundoff of the computation: 2^-53 in float64, 2^-24 in float32; fl(a ∘ b) = (a ∘ b)(1 + δ), |δ| ≤ ε
    ρ   relative reading error: |x' − x| ≤ ρ·x + η. It is 2^-53 for a decimal (half an ulp), plus 2^-24 when
        float64 numbers are rounded to float32, and 0 when the input's own binary values are computed with
    η   what may be flushed: a device may treat subnormals as zero, on input and on output, so every input and
        every result carries an absolute error of up to η, the smallest normal number of the narrowest float
        type involved. (float16 is widened bit by bit and loses nothing; bfloat16 has float32's exponents.)

Every inequality below assumes non-negative finite inputs, u and s in [0, 1). If a value overflows or is NaN, the
margin or the bound is infinite or NaN, no comparison `margin > bound` holds, and the exact path decides.

Everything here is plain arithmetic on what it is given: Python floats, NumPy or JAX arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LANES = 32
"""How many sums run side by side, and how many numbers a cumulative sum adds up at a time."""
BLOCK = 8 * LANES
"""Width of the blocks in which a row is summed; both enter the bound through `additions`."""


@dataclass(frozen=True)
class Precision:
    """What the kernel computes in, and how far the numbers it is given are from what they mean.

    Hashable, so that a jitted function can take it as a static argument.
    """

    dtype: str
    """"float64" or "float32"."""
    reading_error: float
    """ρ."""
    smallest_normal: float
    """η."""

    @property
    def unit(self) -> float:
        """ε, the unit roundoff."""
        return 2.0**-53 if self.dtype == "float64" else 2.0**-24


def precision(dtype: str, *, decimal: bool, input_bits: int) -> Precision:
    """The precision of a computation in `dtype` on inputs of `input_bits` (16, 32 or 64) bits.

    Args:
      dtype: "float64" or "float32".
      decimal: the numbers stand for decimals, which the doubles only approximate.
      input_bits: the width of the narrowest probabilities.

    Raises:
      ValueError: another dtype, for which nothing is proven here.
    """
    if dtype not in ("float64", "float32"):
        raise ValueError(f"the kernel computes in float64 or float32, not in {dtype}")
    narrowed = dtype == "float32"
    return Precision(
        dtype=dtype,
        reading_error=(2.0**-53 if decimal else 0.0) + (2.0**-24 if narrowed else 0.0),
        smallest_normal=2.0**-126 if narrowed or input_bits < 64 else 2.0**-1022,
    )


def accept_bound(uq: Any, p: Any, q: Any, how: Precision) -> Any:
    """Bound on the error of the accept margin p − u·q, for the kernel's own u·q, p and q.

    Let t' = fl(u'·q'). Then

        |t' − u·q| ≤ |u'q' − uq| + ε·u'q' + η                      rounding and flushing of the product
        |u'q' − uq| ≤ (2ρ + ρ²)·uq + (1 + ρ)·η·(u + q) + η²         reading of u and of q
        |p' − p|   ≤ ρ·p + η                                       reading of p

    With u < 1 and, because ρ and ε are below 2^-22, the exact quantities on the right within a factor 1.001 of
    the computed ones (up to another η), the sum is at most 1.01·((2ρ + ε)·t' + ρ·p' + η·(4 + q')). The margin
    is one more subtraction, relative error ε, or a fused multiply-add, which only lowers the error; where it is
    flushed it becomes 0, which decides nothing. The factors
    below also cover the rounding of this expression itself: each of its operations errs by at most ε and η.

    Args:
      uq: fl(u·q), any shape.
      p: target probabilities of the draft tokens, the same shape.
      q: draft probabilities of the draft tokens, the same shape.
      how: the computation's precision.

    Returns:
      The bound, the same shape: `abs(p - uq) > bound` is a decision that exact arithmetic shares.
    """
    relative = 4 * (how.unit + how.reading_error)
    return relative * uq + relative * p + 8 * how.smallest_normal * (1 + q)


def additions(vocabulary: int) -> int:
    """The most additions that any summand passes through on its way into a cumulative value or a sum.

    A block of `BLOCK` entries is added up in `LANES` sums of BLOCK/LANES entries, and these to one, each in some
    order: BLOCK/LANES + LANES − 2 additions at most. A cumulative sum of M numbers adds up groups of `LANES`, then
    these groups, and then the two: LANES + ⌈M/LANES⌉ at most, with M = ⌈V/BLOCK⌉ for the blocks. One more adds the
    blocks before to the entries within a block, whose own cumulative sum, with M = BLOCK, takes no more than that.
    """
    return BLOCK // LANES + 2 * LANES + -(-vocabulary // (BLOCK * LANES))


def summation_error(most: int, unit: float) -> float:
    """γ: relative error of a sum of non-negative numbers, in which none passes through more additions than that.

    γ_k = kε/(1 − kε), Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, lemma 3.1 and
    section 4.2; infinite where kε is too large for it to hold.
    """
    k = most * unit
    return k / (1 - k) if k < 0.1 else math.inf


def draw_bound(mass: Any, weight: Any, vocabulary: int, how: Precision, most: int | None = None) -> Any:
    """Bound on the error of C_v − s·T, for every v, C the cumulative residual and T = C_{V−1} its mass.

    With r'_w = fl(max(p'_w − q'_w, 0)), and max being no further apart than its arguments,

        |r'_w − r_w| ≤ ρ·(p_w + q_w) + 2η + ε·r'_w/(1 − ε) + η      reading; rounding and flushing of p' − q'

    and summed over w ≤ v, with W = Σ(p_w + q_w) and S_v the exact sum of the r'_w,

        |S_v − C_v| ≤ ρ·W + 3V·η + 1.01·ε·S_v
        |C'_v − S_v| ≤ γ·S_v                                        γ of `summation_error`; sums never flush

    so that |C'_v − C_v| ≤ E = ρ·W + 3V·η + 1.12·(ε + γ)·T' for every v, the last one (T) included. The
    threshold t' = fl(s'·T') adds to that s·E, and (ρ + ε)·T' + η·T' + η for reading s and for the product. Hence

        |(C'_v − t') − (C_v − s·T)| ≤ 2E + 1.01·(ρ + ε)·T' + η·(T' + 1)

    which the expression below exceeds, its own rounding, that of W' and that of the final subtraction included.

    Args:
      mass: T', any shape.
      weight: W', the same shape; read only where ρ > 0.
      vocabulary: V.
      how: the computation's precision.
      most: additions that a summand passes through; by default those of the kernel.

    Returns:
      The bound, the same shape: with C'_y − t' > bound and t' − C'_{y−1} > bound, y is the exact draw.
    """
    most = additions(vocabulary) if most is None else most
    relative = 3 * summation_error(most, how.unit) + 6 * how.unit + 2 * how.reading_error
    absolute = 8 * how.smallest_normal * (vocabulary + 1)
    bound = relative * mass + absolute * (1 + mass)
    return bound + 3 * how.reading_error * weight if how.reading_error else bound
