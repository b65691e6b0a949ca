"""Silent corruption: which rank computes wrong numbers (incident M13).

Two signs, both exact because the same program on the same numbers gives the same bits. Ranks that
hold the same weights hash them: a rank whose hash differs has changed its own. But an all-reduce
spreads a wrong gradient evenly, and then all replicas agree on wrong weights; so one slot of data
is computed by two ranks, and their losses and gradients are compared.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparisons say."""

    kind: Literal["sound", "odd", "undecided"]
    reason: str
    ranks: tuple[int, ...] = ()
    """`odd`: those to blame. `undecided`: those among which the one to blame is."""
    sound_step: int | None = None
    """Newest step at which all still agreed, to whose state one can go back, if any."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One slot computed by two ranks."""

    step: int
    first: int
    second: int
    first_values: tuple[float, ...]
    """Such as loss and gradient norms, or the numbers of a hash."""
    second_values: tuple[float, ...]

    def same(self, tolerance: float = 0.0) -> bool:
        """Whether they agree; NaN agrees with NaN."""
        return len(self.first_values) == len(self.second_values) and all(
            math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
            for a, b in zip(self.first_values, self.second_values, strict=True)
        )


def judge_hashes(step: int, hashes: Mapping[int, str]) -> Verdict:
    """Compare the hashes, by rank, of the weights that ranks hold alike."""
    counts = Counter(hashes.values()).most_common(1)
    if not counts or counts[0][1] == len(hashes):
        return Verdict("sound", f"step {step}: all replicas hold the same weights", (), step)
    value, count = counts[0]
    if 2 * count > len(hashes):
        odd = tuple(sorted(rank for rank in hashes if hashes[rank] != value))
        why = f"the weights of {_ranks(odd)} differ from those of the other replicas"
        return Verdict("odd", f"step {step}: {why}", odd)
    why = f"{_ranks([*hashes])} differ, and no majority of replicas tells which are right"
    return Verdict("undecided", f"step {step}: the weights of {why}", tuple(sorted(hashes)))


def judge_slots(comparisons: Sequence[Comparison], tolerance: float = 0.0) -> Verdict:
    """Name the rank that computes wrong numbers, from comparisons of pairs, by rising step.

    Two ranks that differ cannot tell which of them is wrong; a third that agrees with one of
    them on the same slot, or that differs from one of them as well, can. A fault comes and goes,
    so an agreement at another step acquits nobody: only what accuses is counted over time.
    `tolerance`: relative difference that is none; 0 where kernels give the same bits twice.
    """
    differing = [c for c in comparisons if not c.same(tolerance)]
    steps = sorted({c.step for c in comparisons})
    if not differing:
        return Verdict("sound", "all slots computed twice agree", (), steps[-1] if steps else None)
    earliest = min(c.step for c in differing)
    sound_step = max((step for step in steps if step < earliest), default=None)
    accused = {c.first for c in differing} | {c.second for c in differing}
    # Whoever agrees with anybody on a slot is not the odd one of that slot.
    acquitted: defaultdict[int, set[int]] = defaultdict(set)
    for c in comparisons:
        if c.same(tolerance):
            acquitted[c.step] |= {c.first, c.second}
    guilty_at = ({c.first, c.second} - acquitted[c.step] for c in differing)
    explains = accused.intersection(*guilty_at)
    partners = {c.second if c.first == rank else c.first for rank in explains for c in differing}
    names = _ranks(list(explains or accused))
    kind: Literal["odd", "undecided"] = "odd" if len(explains) == 1 else "undecided"
    if kind == "odd":
        others = _ranks(list(partners - explains))
        why = f"{names} computes other numbers than {others} from the same data"
    elif explains:
        why = f"{names} compute different numbers from the same data"
        why += "; two cannot tell which is wrong"
    else:
        why = f"{names} differ, and no single rank explains it"
    at, ranks = differing[-1].step, tuple(sorted(explains or accused))
    return Verdict(kind, f"step {at}: {why}", ranks, sound_step)


def next_pair(turn: int, ranks: Sequence[int]) -> tuple[int, int]:
    """Whom to compare at a turn, from 0: neighbours first; in time, every rank with every other."""
    count = len(ranks)
    distance = 1 + turn // count % (count - 1)
    first = turn % count
    return ranks[first], ranks[(first + distance) % count]


def judge_together(verdicts: Sequence[Verdict], step: int) -> Verdict:
    """One verdict at a step; where a group names the odd one, undecided others are left alone."""
    for kind in ("odd", "undecided"):
        found = [verdict for verdict in verdicts if verdict.kind == kind]
        if found:
            ranks = sorted({rank for verdict in found for rank in verdict.ranks})
            # Groups of the same ranks mostly say the same.
            reasons = dict.fromkeys(verdict.reason for verdict in found)
            return Verdict(found[0].kind, "; ".join(reasons), tuple(ranks))
    return Verdict("sound", f"step {step}: all ranks that were compared agree", (), step)


def judge(
    step: int,
    what: str,
    given: Sequence[Mapping[str, str | tuple[float, ...]]],
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
            pairs = {tuple(sorted(next_pair(turn, ranks))) for turn in range(len(ranks))}
            slots = [Comparison(step, a, b, values[a], values[b]) for a, b in sorted(pairs)]
            verdicts.append(judge_slots(slots, tolerance))
    together = judge_together(verdicts, step)
    return together if together.kind == "sound" else replace(together, sound_step=sound_step)


def _ranks(ranks: Sequence[int]) -> str:
    words = [str(rank) for rank in sorted(ranks)]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words)}"
