"""Units that cross stage borders, and how people read them.

Enters: plain numbers. Leaves: the same numbers with a name, or short text.
Never knows: where a figure came from.
"""

import math

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
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3}[suffix]
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
