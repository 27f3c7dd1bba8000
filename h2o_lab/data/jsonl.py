"""Files with one JSON object a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from h2o_lab.errors import UserError

Row = TypeVar("Row")


def read_jsonl(file: Path, convert: Callable[[Any], Row]) -> list[Row]:
    """The converted rows of `file`; blank lines are skipped.

    Args:
        file: UTF-8 text.
        convert: makes a row of a parsed line, and raises `ValueError` where it cannot.

    Raises:
        UserError: the file cannot be read, is no UTF-8 or holds no row, or a line, which it names, is broken.
    """
    rows = []
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_row(line, convert, f"{file}, line {number}"))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): it has to be a file of JSON lines.") from error
    if not rows:
        raise UserError(f"{file} is empty: it has to hold at least one JSON object, one a line.")
    return rows


def _row(line: bytes, convert: Callable[[Any], Row], where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
        if b"\\ud" in line.lower():  # half a character, which an escape can say and no tokenizer takes
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        return convert(row)
    except RecursionError as error:
        raise UserError(f"{where}: nested too deep to be read, one flat object a line is allowed.") from error
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: a lone surrogate ({error.object[error.start]!r}) is no character.") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: byte {error.start + 1} is not UTF-8, which is the only encoding allowed."
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not JSON ({error.msg} at column {error.colno}), one object a line is allowed."
        ) from error
    except ValueError as error:
        raise UserError(f"{where}: {error}.") from error
