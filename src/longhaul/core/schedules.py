"""Pure functions of the step, or of a seed and names: learning rate, random key."""

import hashlib
import math
from typing import Literal

Shape = Literal["constant", "cosine", "linear", "wsd"]


def learning_rate_factor(
    step: int,
    *,
    shape: Shape,
    warmup_steps: int,
    decay_steps: int,
    final_fraction: float,
    cooldown_steps: int = 0,
) -> float:
    """Factor on the peak learning rate for the update that turns `step` into `step + 1`.

    Linear warm-up over `warmup_steps`: factors 1/(warmup+1), 2/(warmup+1), …, then by shape:
    constant; cosine (SGDR, arXiv 1608.03983, one half period) and linear, from 1 at the end of the
    warm-up to `final_fraction` at `decay_steps`; wsd (warm-up–stable–decay, arXiv 2404.06395), flat
    until the last `cooldown_steps` before `decay_steps`, then linear. Past `decay_steps` it stays
    at `final_fraction`.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if shape == "constant":
        return 1.0
    begin = decay_steps - cooldown_steps if shape == "wsd" else warmup_steps
    begin = max(begin, warmup_steps)
    if step >= decay_steps:
        return final_fraction
    if step < begin:
        return 1.0
    progress = (step - begin) / (decay_steps - begin)
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if shape == "cosine" else 1 - progress
    return final_fraction + (1 - final_fraction) * remaining


def derive_key(seed: int, *path: int | str) -> int:
    """A key for one purpose, independent of all others; the same on any machine."""
    text = "\x1f".join([str(seed), *map(str, path)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
