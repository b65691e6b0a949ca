"""Silent corruption: which rank computes wrong numbers (incident M13).

Two signs, both exact because the same program on the same numbers gives the same bits. Ranks that
hold the same weights hash them: a rank whose hash differs has changed its own. But an all-reduce
spreads a wrong gradient evenly, and then all replicas agree on wrong weights; so one slot of data
is computed by two ranks, and their losses and gradients are compared.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Numbers = tuple[float, ...]
"""What a rank computed from a slot, such as its loss and gradient norms."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparisons at one step say."""

    kind: Literal["sound", "odd", "undecided"]
    reason: str
    ranks: tuple[int, ...] = ()
    """`odd`: those to blame. `undecided`: those among which the one to blame is."""
    sound_step: int | None = None
    """Newest step before at which all still agreed, to whose state one can go back, if any."""


def judge_hashes(step: int, hashes: Mapping[int, str]) -> Verdict:
    """Compare the hashes, by rank, of the weights that ranks hold alike."""
    counts = Counter(hashes.values()).most_common(1)
    if not counts or counts[0][1] == len(hashes):
        return Verdict("sound", f"step {step}: all replicas hold the same weights")
    value, count = counts[0]
    if 2 * count > len(hashes):
        odd = tuple(sorted(rank for rank in hashes if hashes[rank] != value))
        why = f"the weights of {_ranks(odd)} differ from those of the other replicas"
        return Verdict("odd", f"step {step}: {why}", odd)
    why = f"{_ranks(hashes)} differ, and no majority of replicas tells which are right"
    return Verdict("undecided", f"step {step}: the weights of {why}", tuple(sorted(hashes)))


def judge_slots(step: int, computed: Mapping[int, Numbers], tolerance: float = 0.0) -> Verdict:
    """Name the rank that computes wrong numbers, from what each computed from the same slot.

    Neighbours in a ring are compared. Two ranks that differ cannot tell which of them is wrong; a
    third that agrees with one of them, or that differs from one of them as well, can. `tolerance`:
    relative difference that is none; 0 where kernels give the same bits twice.
    """
    ranks = sorted(computed)
    differing: list[set[int]] = []
    agreeing: set[int] = set()
    for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
        if agree(computed[a], computed[b], tolerance):
            agreeing |= {a, b}
        else:
            differing.append({a, b})
    if not differing:
        return Verdict("sound", f"step {step}: all slots computed twice agree")
    accused = set().union(*differing)
    # Whoever agrees with anybody is not the odd one.
    explains = accused.intersection(*(pair - agreeing for pair in differing))
    names = _ranks(explains or accused)
    if len(explains) == 1:
        others = _ranks(accused - explains)
        why = f"{names} computes other numbers than {others} from the same data"
    elif explains:
        why = f"{names} compute different numbers from the same data"
        why += "; two cannot tell which is wrong"
    else:
        why = f"{names} differ, and no single rank explains it"
    kind: Literal["odd", "undecided"] = "odd" if len(explains) == 1 else "undecided"
    return Verdict(kind, f"step {step}: {why}", tuple(sorted(explains or accused)))


def agree(first: Numbers, second: Numbers, tolerance: float = 0.0) -> bool:
    """Whether two ranks computed the same; NaN agrees with NaN."""
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(first, second, strict=True)
    )


def judge(
    step: int,
    what: str,
    given: Sequence[Mapping[str, str | Numbers]],
    tolerance: float = 0.0,
    sound_step: int | None = None,
) -> Verdict:
    """What a comparison of all ranks says, of `weights` or of a `slot`.

    `given`: by rank: name of a group of ranks → a hash, or what was computed. `tolerance`: as
    `judge_slots`. `sound_step`: of the newest comparison in which all agreed.
    """
    groups: dict[str, list[int]] = {}
    for rank, own in enumerate(given):
        for group in own:
            groups.setdefault(group, []).append(rank)
    verdicts = []
    for group, ranks in groups.items():
        if len(ranks) < 2:
            continue
        if what == "weights":
            verdicts.append(judge_hashes(step, {r: str(given[r][group]) for r in ranks}))
        else:
            values = {r: tuple(map(float, given[r][group])) for r in ranks}
            verdicts.append(judge_slots(step, values, tolerance))
    # Where a group names the odd one, undecided others are left alone.
    for kind in ("odd", "undecided"):
        if found := [verdict for verdict in verdicts if verdict.kind == kind]:
            ranks = sorted({rank for verdict in found for rank in verdict.ranks})
            # Groups of the same ranks mostly say the same.
            reasons = dict.fromkeys(verdict.reason for verdict in found)
            return Verdict(found[0].kind, "; ".join(reasons), tuple(ranks), sound_step)
    return Verdict("sound", f"step {step}: all ranks that were compared agree")


def _ranks(ranks: Iterable[int]) -> str:
    words = [str(rank) for rank in sorted(ranks)]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words)}"
