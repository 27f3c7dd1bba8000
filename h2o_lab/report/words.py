"""Numbers, records and samples as words that fit on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from h2o_lab.results.table import NOTHING, bytes_text

LONG = 400
"""Characters of one text of a sample."""
WHOLE = 2000
"""Characters of one sample."""
ITEMS = 6
"""Of a list."""
DEEP = 5
"""Levels of nesting."""
HUGE = 1e6
MINUS = "−"


def cut(text: str, limit: int) -> str:
    """The first `limit` characters of a text, which says how many there are."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()} … ({len(text):,} characters in all)"


def printable(text: str, limit: int) -> str:
    """The first `limit` characters of a text on one line, those that no font can show replaced."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:limit])


def signed(value: float) -> str:
    """With three decimals and its sign; nothing for zero."""
    text = decimals(abs(value))
    if float(text) == 0:
        return text
    return f"{MINUS if value < 0 else '+'}{text}"


def decimals(value: float | None) -> str:
    """With three decimals; in powers of ten, what is huge."""
    if value is None:
        return NOTHING
    return format(value, ".3f" if abs(value) < HUGE else ".4g").replace("-", MINUS)


def sample_text(sample: Mapping[str, Any]) -> str:
    """A sample as YAML, its long texts and lists cut."""
    text = yaml.dump(_short(sample), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=100)
    return cut(text.rstrip("\n"), WHOLE)


def facts(section: Mapping[str, Any], of: str = "", prefix: str = "") -> list[tuple[str, str]]:
    """Names and values of a part of a record; nested names are joined by dots.

    Args:
        section: the part.
        of: its name, which may tell the unit.
        prefix: of the names.
    """
    found: list[tuple[str, str]] = []
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found += facts(value, of, f"{name}.")
        else:
            found.append((name, _fact(f"{of}.{name}", value)))
    return found


def _fact(name: str, value: Any) -> str:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return NOTHING
    if plain and "bytes" in name:
        return bytes_text(value)
    if plain and name.startswith("seconds."):
        return f"{value:,.2f} s"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if plain else cut(str(value), LONG)


def _short(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return cut(value.encode("utf-8", "backslashreplace").decode(), LONG)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if depth >= DEEP and isinstance(value, Mapping | list):
        return "…"
    if isinstance(value, Mapping):
        return {_short(str(key)): _short(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        shown = [_short(item, depth + 1) for item in value[:ITEMS]]
        return shown if len(value) <= ITEMS else [*shown, f"… ({len(value):,} in all)"]
    return value


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
