"""When which stage of a pipeline makes which pass.

A stage is a stretch of layers. With one stage a rank the order is 1F1B (PipeDream-Flush, arXiv
2006.09503, figure 3): after a warm-up each rank makes a forward and a backward pass in turn. With
several a rank, dealt out round and round, it is interleaved 1F1B (arXiv 2104.04473, section 2.2):
ranks stand idle for a shorter time at the ends of a step, and send more often.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from longhaul.core.pieces import cut_evenly


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one stage over one micro-batch."""

    stage: int
    number: int
    """Of the micro-batch."""
    is_forward: bool

    def follows(self, stages: int) -> "Pass | None":
        """The pass that reads what this one sends; None if it sends nothing."""
        stage = self.stage + (1 if self.is_forward else -1)
        return Pass(stage, self.number, self.is_forward) if 0 <= stage < stages else None


Tick = tuple[Pass | None, ...]
"""By rank: what it does at the same time as the others; None while it waits."""


@lru_cache(maxsize=16)
def timetable(ranks: int, stages_per_rank: int, micro_batches: int) -> tuple[Tick, ...]:
    """All passes of a step; what a pass reads was made in an earlier tick.

    Stage s is rank s mod `ranks`'s.

    Args:
        ranks: of the pipeline.
        stages_per_rank: 1 for plain 1F1B.
        micro_batches: any number of them.
    """
    stages = ranks * stages_per_rank
    orders = [list(_order(rank, ranks, stages_per_rank, micro_batches)) for rank in range(ranks)]
    done, ticks = [0] * ranks, []
    made: set[Pass] = set()
    while any(at < len(order) for at, order in zip(done, orders, strict=True)):
        following = [
            order[at] if at < len(order) else None for at, order in zip(done, orders, strict=True)
        ]
        tick = tuple(
            one if one is not None and _can_begin(one, made, stages) else None for one in following
        )
        assert any(tick), f"a pipeline of {ranks} × {stages_per_rank} stages waits for itself"
        for rank, one in enumerate(tick):
            if one is not None:
                made.add(one)
                done[rank] += 1
        ticks.append(tick)
    return tuple(ticks)


def _can_begin(one: Pass, made: set[Pass], stages: int) -> bool:
    if one.is_forward:
        return one.stage == 0 or Pass(one.stage - 1, one.number, True) in made
    if one.stage == stages - 1:
        return Pass(one.stage, one.number, True) in made
    return Pass(one.stage + 1, one.number, False) in made


def _order(rank: int, ranks: int, stages_per_rank: int, micro_batches: int) -> Iterator[Pass]:
    """A rank's passes, one after another."""
    # A round of micro-batches goes through one of a rank's stages, then through its next.
    rounds = max(1, micro_batches // ranks)
    counts = [micro_batches // rounds + (n < micro_batches % rounds) for n in range(rounds)]
    firsts = [sum(counts[:n]) for n in range(rounds)]
    forward, backward = [], []
    for first, count in zip(firsts, counts, strict=True):
        for turn in range(stages_per_rank):
            for number in range(first, first + count):
                back = (stages_per_rank - 1 - turn) * ranks + rank
                forward.append(Pass(turn * ranks + rank, number, True))
                backward.append(Pass(back, number, False))
    after = ranks - 1 - rank
    ahead = after if stages_per_rank == 1 else (stages_per_rank - 1) * counts[0] + 2 * after
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for number, one in enumerate(forward[ahead:]):
        yield one
        yield backward[number]
    yield from backward[len(forward) - ahead :]


def layers_of(layers: int, rank: int, ranks: int, stages_per_rank: int) -> tuple[range, ...]:
    """The layers of each of a rank's stages, in the order in which they compute."""
    spans = cut_evenly(layers, ranks * stages_per_rank)[rank::ranks]
    return tuple(range(first, first + length) for first, length in spans)
