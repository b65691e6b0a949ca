"""How the report says times, figures and prices.

Enters: numbers. Leaves: short text. Never knows: where it will stand.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

from longhaul.core.units import Seconds, short_seconds


def moment(seconds: Seconds) -> str:
    """1795246105 → '21 Nov 2026, 07:28', in UTC, because a page travels."""
    return time.strftime("%-d %b %Y, %H:%M", time.gmtime(seconds))


def elapsed(seconds: Seconds) -> str:
    """Time since the run began: '+3 h 12 min', from two days on '+4 d 03 h'."""
    if abs(seconds) < 48 * 3600:
        return f"+{short_seconds(max(seconds, 0.0))}"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"+{days} d {hours:02d} h"


def figure(value: float | None, digits: int = 4) -> str:
    """A number for a table; a dash where there is none, words where it is not finite."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("+∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def price_words(price: Mapping[str, float]) -> list[str]:
    """A price as phrases: '32 steps lost', '14.0 s lost'; what costs nothing is not told."""
    return [_phrase(key, value) for key, value in price.items() if value != 0]


def count(number: int, noun: str) -> str:
    """'1 step', '2,000 steps'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sentence(text: Any) -> str:
    """One line that begins with a capital and ends with a stop."""
    flat = " ".join(str(text).split())
    if not flat:
        return ""
    return flat[0].upper() + flat[1:] + ("" if flat[-1] in ".!?…”" else ".")


def _phrase(key: str, value: float) -> str:
    words = key.split("_")
    if math.isfinite(value) and ("seconds" in words or words[-1] == "s"):
        what = " ".join(word for word in words if word not in ("seconds", "s"))
        return f"{short_seconds(value)} {what}".strip()
    if math.isfinite(value) and "share" in words:
        return f"{' '.join(word for word in words if word != 'share')}: {value:.1%}"
    if words[0] in ("steps", "blocks", "tokens"):
        return f"{figure(value, 3)} {' '.join(words)}"
    return f"{' '.join(words)}: {figure(value, 3)}"
