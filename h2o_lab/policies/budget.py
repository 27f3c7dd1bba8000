"""How many entries a cache may hold."""

import math
from dataclasses import dataclass

from h2o_lab.errors import UserError

SMALLEST = 2


def share(fraction: float, n: int) -> int:
    """floor(fraction * n) as the decimal means it: 0.29 * 100 is 28.999999999999996 in binary."""
    return math.floor(fraction * n * (1 + 1e-9))


@dataclass(frozen=True)
class Budget:
    """A cap on the entries of one KV head: a fraction of the tokens, or a number of them.

    Attributes:
        fraction: in (0, 1]; k = max(2, floor(fraction * n)).
        tokens: k itself, at least 2.
        base: what n counts: `prompt`, or `sequence` (prompt and continuation).

    Raises:
        UserError: both or neither are set, or one is out of range.
    """

    fraction: float | None = None
    tokens: int | None = None
    base: str = "prompt"

    def __post_init__(self) -> None:
        if self.fraction is not None and self.tokens is not None:
            raise UserError(
                f"budget={self.fraction} and budget_tokens={self.tokens} are both set: set one of them."
            )
        if self.fraction is None and self.tokens is None:
            raise UserError("no budget is set: set budget to a fraction in (0, 1], or budget_tokens to 2 or more.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UserError(f"budget={self.fraction} is out of range: budget must be in (0, 1].")
        if self.tokens is not None and not SMALLEST <= self.tokens < 2**31:
            raise UserError(
                f"budget_tokens={self.tokens} is out of range: budget_tokens must be {SMALLEST} or more."
            )
        if self.base not in ("prompt", "sequence"):
            raise UserError(f"budget_base={self.base} is unknown: budget_base must be prompt or sequence.")

    def entries(self, prompt: int, sequence: int) -> int:
        """The cap k for one sequence.

        Args:
            prompt: number of its prompt tokens.
            sequence: number of its prompt and continuation tokens.
        """
        if self.tokens is not None:
            return self.tokens
        assert self.fraction is not None
        n = prompt if self.base == "prompt" else sequence
        return max(SMALLEST, share(self.fraction, n))
