"""Were the last tokens drawn from r? A goodness-of-fit test for engines whose noise is not known.

Every row has a distribution of its own, so a row's token is turned into a number that is uniform on [0, 1) if it
was drawn from r: the randomised probability integral transform

    F(y − 1) + w·r(y),   w uniform on [0, 1)

with F the cumulative of r (Brockwell 2007, "Universal residuals: a multivariate transformation", Statistics and
Probability Letters 77; for a discrete distribution it is exact, not an approximation). The numbers of all rows are
compared with the uniform distribution by the Kolmogorov–Smirnov test. This is done twice, with the tokens in the
order of their ids and from the likeliest to the least likely, because a fault need not show in one of the two: a
greedy engine is uniform in the first and not in the second. Each test may raise a false alarm in half of
`FALSE_ALARM`.

w comes from a seeded generator, so that the same rows give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FALSE_ALARM = 0.001
"""The chance that an engine that draws from r is said not to."""
SEED = 20230711


@dataclass(frozen=True)
class Fit:
    """What the test found."""

    rows: int
    """Rows whose last token was tested: those that accept as the exact step does."""
    p_value: float
    """Of both tests together; 1 without rows."""
    order: str
    """The order of tokens in which the smaller p-value was found."""
    likeliest: int
    """Rows whose token is the likeliest one: all of them, where an engine takes the argmax."""
    false_alarm: float
    fits: bool


class FitTest:
    """Gathers rows, then tests them all.

    Args:
      seed: of the noise w.
    """

    def __init__(self, seed: int = SEED) -> None:
        self._random = np.random.default_rng(seed)
        self._by_id: list[float] = []
        self._by_weight: list[float] = []
        self._likeliest = 0

    def add(self, weights: np.ndarray, token: int) -> None:
        """Add a row.

        Args:
          weights: (V,) what the token should have been drawn from, not normalised.
          token: what was drawn, of a positive weight.
        """
        self._likeliest += bool(weights[token] == weights.max())
        mass, own = float(weights.sum()), float(weights[token])
        w = float(self._random.random())
        heavier = float(weights[weights > own].sum()) + float(weights[:token][weights[:token] == own].sum())
        self._by_id.append((float(weights[:token].sum()) + w * own) / mass)
        self._by_weight.append((heavier + w * own) / mass)

    def result(self) -> Fit:
        """Test what was added."""
        from scipy import stats  # type: ignore[import-untyped]  # half a second, only wanted here

        if not self._by_id:
            return Fit(0, 1.0, "", 0, FALSE_ALARM, True)
        values = {
            "of token ids": float(stats.kstest(self._by_id, "uniform").pvalue),
            "from the likeliest token": float(stats.kstest(self._by_weight, "uniform").pvalue),
        }
        order = min(values, key=lambda name: values[name])
        p_value = min(1.0, 2 * values[order])
        return Fit(len(self._by_id), p_value, order, self._likeliest, FALSE_ALARM, p_value >= FALSE_ALARM)
