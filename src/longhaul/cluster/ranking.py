"""Which cluster a launch goes to: by verdict, capacity, data and price. Pure judgement."""

from collections.abc import Sequence
from dataclasses import dataclass

from longhaul.cluster.clusters import Cluster
from longhaul.core.errors import NeedsPerson

_QUEUES = ("slurm", "k8s", "sky")
"""Schedulers that keep a job until its nodes are free; by plain SSH nobody does."""


@dataclass(frozen=True)
class Candidate:
    """A cluster, and what was found out about it."""

    name: str
    cluster: Cluster
    nodes: int
    """That the job needs there."""
    idle: int | None = None
    """Nodes that could begin now; None: nobody could tell."""
    why_unknown: str = ""
    fit: bool | None = None
    """What its last qualification says; None: there is none."""
    local: bool = False
    """The text lies there."""

    @property
    def gpu_hour_price(self) -> float:
        """Price of one GPU for an hour; one that is not known is taken for the highest."""
        return float("inf") if self.cluster.price is None else self.cluster.price

    @property
    def begins(self) -> bool | None:
        """Whether it could begin now; None: nobody can tell."""
        return None if self.idle is None else self.idle >= self.nodes


@dataclass(frozen=True)
class Ranked:
    """The clusters, the best first, each with a sentence of why it stands where it stands."""

    order: tuple[Candidate, ...]
    reasons: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """Where the launch goes."""
        return self.order[0]


def rank(candidates: Sequence[Candidate]) -> Ranked:
    """Order the clusters: those that can begin now before those of which nobody can tell, and
    these before those where the job queues; among equals a qualified cluster, then one that has
    the text, then the cheaper one, then the file's order. One that is not fit is left out, and so
    is one without a queue that has too few nodes. NeedsPerson if none is left.
    """
    usable = [c for c in candidates if c.fit is not False and not _waits_for_nothing(c)]
    if not usable:
        said = "; ".join(f"{c.name}: {reason(c)}" for c in candidates)
        raise NeedsPerson(f"no cluster takes the launch: {said}", "mend one, or add one")
    order = sorted(usable, key=_key)
    return Ranked(tuple(order), tuple(reason(candidate) for candidate in order))


def reason(candidate: Candidate) -> str:
    """What speaks for and against it, in the order in which it counts."""
    words = [_capacity(candidate)]
    words.append({True: "qualified", False: "its last qualification found it unfit",
                  None: "not qualified yet"}[candidate.fit])  # fmt: skip
    words.append("the text lies there" if candidate.local else "the text does not lie there")
    price = candidate.cluster.price
    words.append("price unknown" if price is None else f"{price:g} per GPU-hour")
    return ", ".join(words)


def _capacity(candidate: Candidate) -> str:
    if candidate.idle is None:
        return f"capacity unknown ({candidate.why_unknown})"
    said = f"{candidate.idle} of {candidate.nodes} nodes idle"
    if candidate.begins:
        return f"{said}, begins now"
    queues = candidate.cluster.scheduler in _QUEUES
    return f"{said}, {'queues' if queues else 'and no queue'}"


def _waits_for_nothing(candidate: Candidate) -> bool:
    return candidate.begins is False and candidate.cluster.scheduler not in _QUEUES


def _key(candidate: Candidate) -> tuple[int, bool, bool, float]:
    begins = {True: 0, None: 1, False: 2}[candidate.begins]
    return begins, candidate.fit is not True, not candidate.local, candidate.gpu_hour_price
