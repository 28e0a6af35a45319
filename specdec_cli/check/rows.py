"""One row of a batch, in the floats that a replay or a distance needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from specdec_cli.batch import Batch


class Row:
    """A row of a batch; what is computed of it is kept.

    Args:
      batch: the batch.
      index: the row's number.
      draft_index: the row that the draft's probabilities are taken from, for engines that mix them up.
    """

    def __init__(self, batch: Batch, index: int, draft_index: int | None = None) -> None:
        self.batch = batch
        self.index = index
        self._draft_index = index if draft_index is None else draft_index
        self._weights: dict[int, np.ndarray] = {}
        self._kept: dict[int, int] = {}

    @cached_property
    def length(self) -> int:
        """L, the number of draft tokens."""
        return self.batch.draft_length(self.index)

    @property
    def tokens(self) -> np.ndarray:
        """int32 (L,): the draft tokens."""
        return self.batch.draft_tokens[self.index, : self.length]

    @property
    def u(self) -> np.ndarray:
        """float64 (L,)."""
        return self.batch.accept_uniforms[self.index, : self.length]

    @property
    def s(self) -> float:
        """The sample uniform."""
        return float(self.batch.sample_uniforms[self.index])

    def p(self, position: int) -> np.ndarray:
        """float64 (V,): the target's distribution."""
        return np.asarray(self.batch.target_probs[self.index, position]).astype(np.float64)

    def q(self, position: int) -> np.ndarray:
        """float64 (V,): the draft's distribution."""
        return np.asarray(self.batch.draft_probs[self._draft_index, position]).astype(np.float64)

    @cached_property
    def p_x(self) -> np.ndarray:
        """float64 (L,): the target's probabilities of the draft tokens."""
        at = (self.index, np.arange(self.length), self.tokens)
        return np.asarray(self.batch.target_probs[at]).astype(np.float64)

    @cached_property
    def q_x(self) -> np.ndarray:
        """float64 (L,): the draft's."""
        at = (self._draft_index, np.arange(self.length), self.tokens)
        return np.asarray(self.batch.draft_probs[at]).astype(np.float64)

    def kept(self, position: int, draw: Callable[[], int]) -> int:
        """The right draw at a position, which many replays share."""
        if position not in self._kept:
            self._kept[position] = draw()
        return self._kept[position]

    def weights(self, position: int) -> np.ndarray:
        """float64 (V,), not normalised: the residual at a position, or p at the bonus position.

        p as well where the residual is empty, as the contract has it.
        """
        if position not in self._weights:
            weights = self.p(position)
            if position < self.length:
                residual = np.maximum(weights - self.q(position), 0)
                weights = residual if residual.any() else weights
            self._weights[position] = weights
        return self._weights[position]
