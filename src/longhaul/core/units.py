"""Units that cross stage boundaries, and how people read figures, times and prices."""

import math
import time
from collections.abc import Mapping
from typing import Any

Seconds = float
Bytes = int
Nats = float

NATS_PER_BIT = 0.6931471805599453
LAST_MOMENT: Seconds = 1e13
"""In Unix time; 300,000 years later there is no date that a system can show."""


def bits_per_byte(total_nats: Nats, num_bytes: float) -> float:
    """Compression of text by a model: summed loss in bits over UTF-8 bytes of that text."""
    return total_nats / NATS_PER_BIT / num_bytes if num_bytes else float("nan")


def loss_in_words(loss: Nats, bits: float | None) -> str:
    """4.8226 nats, 1.8450 bits per byte; the bits are left out where bytes are not known."""
    said = f"{loss:.4f} nats"
    return said if bits is None or math.isnan(bits) else f"{said}, {bits:.4f} bits per byte"


def short_count(value: float) -> str:
    """1234567 → '1.23M'."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(scale, 1e4):
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.0f}"


def short_bytes(value: float) -> str:
    """3355443200 → '3.36 GB' (decimal units, as disks are sold)."""
    for limit, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.0f} B"


def short_seconds(value: Seconds) -> str:
    """3725 → '1 h 02 min'; below a minute with one decimal."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


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
