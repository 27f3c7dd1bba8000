"""Checks of a policy's fields, each a sentence that names the field and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2o_lab.errors import UserError
from h2o_lab.policies.priority import Priority

if TYPE_CHECKING:
    from h2o_lab.policies.base import Policy


LARGEST = 2**31 - 1
"""Of whole numbers: positions are 32 bits wide."""


def check_number(
    policy: Policy, field: str, low: float, high: float, kind: type, *, optional: bool = False
) -> None:
    """Refuse a value that is no number of this kind, or out of its range; None where it is optional."""
    value = getattr(policy, field)
    if value is None and optional:
        return
    high = min(high, LARGEST)
    right_type = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not right_type or not low <= value <= high:
        word = "a number" if kind is float else "a whole number"
        upper = f"to {high:g}" if high < LARGEST else "or more"
        raise UserError(f"policy {policy.name}: {field} must be {word}, {low:g} {upper}, and is {value!r}.")


def check_word(policy: Policy, field: str, allowed: tuple) -> None:
    """Refuse a value that is not among those allowed."""
    value = getattr(policy, field)
    if value not in allowed:
        words = [str(word or "null") for word in allowed]
        listed = f"{', '.join(words[:-1])} or {words[-1]}"
        raise UserError(f"policy {policy.name}: {field} must be {listed}, and is {value!r}.")


def as_priority(policy: Policy) -> Priority:
    """The priority that a word, a number or a member means."""
    value = policy.priority
    try:
        return Priority[value.upper()] if isinstance(value, str) else Priority(value)
    except (KeyError, ValueError):
        allowed = ", ".join(p.name.lower() for p in Priority)
        raise UserError(f"policy {policy.name}: priority must be one of {allowed}, and is {value!r}.") from None
