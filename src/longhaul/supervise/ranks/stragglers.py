"""Which rank is slower than its peers (incident M5), and what else is watched of ranks."""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from longhaul.core.units import Seconds
from longhaul.parallel.layout import Layout

WINDOW_STEPS = 64
"""A rank is judged by the medians of both halves of this window. One that becomes slower is named
when the older half has seen it too: within 80 steps."""
_EVERY_STEPS = 8
"""Medians of a thousand ranks take a few milliseconds; nobody needs them at every step."""
SLOWER = 0.1
"""Share by which both halves must be slower than the peers' median; a 20 % slower rank is well
above it, a rank that runs 3 % warmer than others well below."""
_SIGMAS = 5.0
"""And the difference must stand out of the ranks' own jitter: at 5 standard errors one false name
in a hundred thousand judgements of a thousand ranks, were jitter normal."""
_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation in median absolute deviations;"""
_MEDIAN_ERROR = 1.2533
"""and the standard error of its median, times the root of the count, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that keeps the others waiting."""

    rank: int
    slower: float
    """Share by which its median exceeds the median of its peers: 0.2 is 20 %."""
    lost_s: Seconds
    """What all ranks lose at each step because of it."""
    lost_share: float
    """The same as a share of the slowest rank's compute time."""
    since_step: int
    """First step of the window that it was seen in."""

    @property
    def sentence(self) -> str:
        """For a tired person."""
        return (
            f"rank {self.rank} computes {self.slower:.0%} slower than its peers since step "
            f"{self.since_step} or before: every step waits {self.lost_s:.3g} s for it, "
            f"{self.lost_share:.0%} of what all devices could do"
        )


class StragglerWatch:
    """Watches the ranks of one world.

    After a collective all ranks have taken equally long, because the fast ones wait for the slow
    one; so what counts is each rank's own time before it (incident M5). Only ranks of one group
    have equal work, as those of a pipeline's stage; `groups`: by rank, which it belongs to.
    """

    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = [
            [rank for rank, own in enumerate(groups) if own == group]
            for group in dict.fromkeys(groups)
        ]
        self._window: deque[tuple[int, tuple[Seconds, ...]]] = deque(maxlen=WINDOW_STEPS)
        self._seen = 0
        self._named: set[int] = set()

    def observe(self, step: int, seconds: Sequence[Seconds]) -> tuple[Straggler, ...]:
        """Stragglers that were not named before; each is named once until it has recovered.

        `seconds`: of each rank, in the order of ranks. A step with a time that is none, or in which
        all ranks did something else (compiled, read gauges), is better left out.
        """
        if not all(math.isfinite(s) and s > 0 for s in seconds):
            return ()
        self._window.append((step, tuple(seconds)))
        self._seen += 1
        if len(self._window) < WINDOW_STEPS or self._seen % _EVERY_STEPS:
            return ()
        by_rank = list(zip(*(seconds for _, seconds in self._window), strict=True))
        medians = [statistics.median(own) for own in by_rank]
        found: list[Straggler] = []
        near: set[int] = set()
        for ranks in self._groups:
            usual = _lower_median(medians[rank] for rank in ranks)
            found += _stragglers(ranks, by_rank, medians, usual, self._window[0][0])
            # Only well below the line one has recovered: at it, it would be named again and again.
            near.update(rank for rank in ranks if medians[rank] >= (1 + SLOWER / 2) * usual)
        before, self._named = self._named, (self._named & near).union(item.rank for item in found)
        worst_first = sorted(found, key=lambda item: -item.lost_s)
        return tuple(item for item in worst_first if item.rank not in before)


def _stragglers(
    ranks: Sequence[int],
    by_rank: Sequence[Sequence[Seconds]],
    medians: Sequence[Seconds],
    usual: Seconds,
    first_step: int,
) -> list[Straggler]:
    """Those of a group of ranks, of which the median rank takes `usual`."""
    half = WINDOW_STEPS // 2
    usual_rank = next(rank for rank in ranks if medians[rank] == usual)
    usual_error = _error(by_rank[usual_rank], usual)
    early = {rank: statistics.median(by_rank[rank][:half]) for rank in ranks}
    late = {rank: statistics.median(by_rank[rank][half:]) for rank in ranks}
    least_early, least_late = ((1 + SLOWER) * _lower_median(x.values()) for x in (early, late))
    slow = [
        rank
        for rank in ranks
        if early[rank] >= least_early
        and late[rank] >= least_late
        and medians[rank] - usual
        >= _SIGMAS * math.hypot(usual_error, _error(by_rank[rank], medians[rank]))
    ]
    # Removing one straggler helps only as far as the next slowest rank.
    others = max((medians[rank] for rank in ranks if rank not in slow), default=usual)
    lost = {rank: medians[rank] - others for rank in slow}
    return [
        Straggler(
            rank, medians[rank] / usual - 1, lost[rank], lost[rank] / medians[rank], first_step
        )
        for rank in slow
    ]


def _lower_median(values: Iterable[float]) -> float:
    """Of an even number the lower one, so that of two ranks the faster is the measure."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _error(seconds: Sequence[Seconds], median: Seconds) -> Seconds:
    """Standard error of a rank's median, from its own jitter."""
    deviation = statistics.median(abs(s - median) for s in seconds)
    return _MEDIAN_ERROR * _TO_SIGMA * deviation / math.sqrt(len(seconds))


Kind = Literal["stragglers", "weights", "numbers"]


@dataclass(frozen=True, slots=True)
class Look:
    """One kind of look at the ranks."""

    what: Kind
    """`weights`: hashes of what ranks hold alike. `numbers`: what they compute from one batch."""
    watched: bool
    how: str
    """How, or why not."""


def looks(
    layout: Layout,
    nodes: Sequence[str],
    hash_every: int,
    witness_every: int,
    device: str,
    held_alike: float,
) -> tuple[Look, ...]:
    """What is watched, each kind once.

    `hash_every`, `witness_every`: steps between looks at the weights, and at the numbers; 0: none.
    `held_alike`: share of the weights of which several ranks have the same.
    """
    data, peers = layout.data_size, layout.data_size * layout.tensor
    of = " of a stage" if layout.pipeline > 1 else ""
    held = f"{held_alike:.2%} of them: the rest is held by one rank alone"
    if layout.replicate > 1:
        held = f"all, among {layout.replicate} replicas"
    witnesses = f"among {data} data ranks, every {witness_every} steps"
    if data == 2:
        witnesses += "; of two that differ nobody can tell which is wrong"
    elif len(set(nodes)) == 1:
        witnesses += "; one node alone has no witness against it"
    return (
        _look("stragglers", f"among the {peers} ranks{of}", {
            "each stage of the pipeline is one rank, without a peer": peers == 1,
            "the ranks of a tensor-parallel layer wait for each other within it":
                device != "cpu" and data == 1,
        }),
        _look("weights", f"{held}, every {hash_every} steps", {
            "monitor.hash_every=0": hash_every == 0,
            "every weight is held by one rank alone": held_alike == 0,
        }),
        _look("numbers", witnesses, {
            "monitor.witness_every=0": witness_every == 0,
            "no other data rank could compute the same": data == 1,
        }),
    )  # fmt: skip


def _look(what: Kind, how: str, hindrances: Mapping[str, bool]) -> Look:
    why_not = next((why for why, hinders in hindrances.items() if hinders), "")
    return Look(what, not why_not, why_not or how)


def in_words(found: Sequence[Look]) -> str:
    """One line for people."""
    names = {"stragglers": "slow ranks", "weights": "wrong weights", "numbers": "wrong numbers"}
    parts = []
    for watched, verb in ((True, "watched for"), (False, "not watched for")):
        words = [f"{names[look.what]} ({look.how})" for look in found if look.watched == watched]
        parts += [f"{verb} {', '.join(words)}"] if words else []
    return f"ranks are {'; '.join(parts)}"
