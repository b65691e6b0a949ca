"""Curves of others to compare runs with, from CSV files: OPT plotted itself against GPT-3."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.errors import UsageError

_MOST_ROWS = 100_000
_AXES = ("step", "tokens")


@dataclass(frozen=True)
class Reference:
    """One curve."""

    name: str
    axis: str
    """What `x` counts: `step`s or target `tokens`."""
    x: tuple[float, ...]
    loss: tuple[float, ...]
    """Nats a token."""


def read_reference(path: Path) -> Reference:
    """A CSV file with a heading, a column `step` or `tokens`, and a column `loss`; other columns
    are passed over. UsageError if it is none.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            names = rows.fieldnames or ()
            axis = next((name for name in _AXES if name in names), None)
            if axis is None or "loss" not in names:
                raise UsageError(
                    f"{path}: its columns are {', '.join(map(str, names)) or 'none'}",
                    "a reference has a heading with `loss`, and `step` or `tokens`",
                )
            points = []
            for row in rows:
                point = (
                    _number(row[axis], path, rows.line_num),
                    _number(row["loss"], path, rows.line_num),
                )
                points.append(point)
                if len(points) > _MOST_ROWS:
                    raise UsageError(f"{path}: more than {_MOST_ROWS:,} rows", "thin it out")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: cannot be read: {why}", "give a CSV file") from error
    if not points:
        raise UsageError(f"{path}: no row below its heading", "give a CSV file with points")
    x, loss = zip(*sorted(points), strict=True)
    return Reference(path.stem, axis, x, loss)


def _number(text: object, path: Path, line: int) -> float:
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{path}, line {line}: {text!r} is no number", "correct the line")
    return value
