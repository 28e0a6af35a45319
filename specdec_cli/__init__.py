"""specdec: the reference for the verification step of speculative decoding.

`verify` is the whole Python interface. Importing this package imports neither NumPy nor JAX, so that
`specdec --help` is quick and a program can decide on its JAX set-up first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_cli.errors import EmptyResidualWarning, InputError

if TYPE_CHECKING:
    import jax
    from numpy.typing import ArrayLike

__version__ = "0.1.0"
__all__ = ["EmptyResidualWarning", "InputError", "__version__", "verify"]


def verify(
    draft_tokens: ArrayLike | jax.Array,
    draft_probs: ArrayLike | jax.Array,
    target_probs: ArrayLike | jax.Array,
    accept_uniforms: ArrayLike | jax.Array,
    sample_uniforms: ArrayLike | jax.Array,
    *,
    validate: bool = True,
    sum_tolerance: float | None = None,
    devices: int | str | None = None,
) -> dict[str, jax.Array]:
    """Verify a batch of drafts: which tokens are kept, and the one token drawn after them.

    Position i with draft token x passes when u_i < p_i(x) / q_i(x). With n the number of positions passed
    before the first failure, one more token y is drawn: the smallest v with r(0) + … + r(v) > s, where r is
    max(p_n − q_n, 0), normalised, after a rejection, and p_n, normalised, when every draft token passed.

    Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.

    The answer is the one that exact arithmetic gives for the arrays' binary values, on any device.

    B rows, G draft positions, V vocabulary entries; NumPy or JAX arrays (anything that `numpy.asarray` takes):

    Args:
      draft_tokens: integers (B, G) in [0, V); a row may end in -1s: a shorter draft.
      draft_probs: float16, bfloat16, float32 or float64 (B, G, V): q, what each draft token was sampled from.
      target_probs: the same types, (B, G + 1, V): p, the target at those positions and one more.
      accept_uniforms: floats (B, G) in [0, 1): u.
      sample_uniforms: floats (B,) in [0, 1): s.
      validate: False skips the pass over the probabilities (sign, finiteness, sums), never the checks of
        shapes, token ids and noise. Negative or non-finite entries may then be refused or not, by chance.
      sum_tolerance: sums must be closer to 1 than this; by default 1e-3, and 1e-2 for float16 and bfloat16.
      devices: how many of this process's devices rows are shared over, or "all" of them. They are JAX's default
        device, or the one where the probabilities are, and others of its kind; by default that one alone.

    Returns:
      `{"num_accepted": int32 (B,), "tokens": int32 (B, G + 1)}`, JAX arrays on the default device. A row of
      `tokens` holds the accepted tokens, then y, then -1.

    Raises:
      InputError: (a ValueError) the arrays are not what is described here; it names field and index.
      RuntimeError: there are not so many devices, or JAX cannot use them; it says what there is.
      TypeError: called inside `jax.jit` or another transformation; the exact decision needs values.

    At the edges: q(x) = 0 passes exactly when p(x) > 0, and p(x) = 0 never passes. A token of zero mass is
    never drawn. Sums need not be 1: p and q enter the test as given, r is divided by its own sum. A rejection
    that leaves no residual (p ≤ q everywhere) draws from p_n, with an `EmptyResidualWarning`.
    """
    from specdec_cli.verification import verify_arrays

    return verify_arrays(
        draft_tokens,
        draft_probs,
        target_probs,
        accept_uniforms,
        sample_uniforms,
        validate=validate,
        sum_tolerance=sum_tolerance,
        devices=devices,
    )
