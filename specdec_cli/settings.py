"""What the verification of an input may be asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The same for every input of a command."""

    validate: bool = True
    """Check that the probabilities are distributions. Without it, an input that is not may be refused or answered,
    by chance; one that is (or only sums to something else) is answered all the same."""
    sum_tolerance: Fraction | None = None
    """How far from 1 a sum may be, exclusive; None for 1e-3, and 1e-2 for 16-bit floats."""
    device: str | None = None
    """"cpu", "gpu" or "tpu"; None for JAX's default device, or where the probabilities are."""
    devices: int | str | None = None
    """Over how many devices of that kind rows are shared, 1 or more, or "all"; None for that one alone."""

    def decisive(self) -> dict[str, Any]:
        """Those that an answer depends on, as JSON can hold them."""
        tolerance = None if self.sum_tolerance is None else str(self.sum_tolerance)
        return {"validate": self.validate, "sum_tolerance": tolerance}


DEFAULTS = Settings()
