"""Which cluster a launch goes to, and why."""

import pytest

from launches import cluster_of
from longhaul.cluster.ranking import Candidate, rank
from longhaul.core.errors import NeedsPerson


def of(name: str, idle: int | None = 4, scheduler: str = "slurm", **more) -> Candidate:
    price = more.pop("price", None)
    more = {"why_unknown": "asleep"} | more
    return Candidate(name, cluster_of(scheduler, price=price), 4, idle, **more)


def names(*candidates: Candidate) -> list[str]:
    return [candidate.name for candidate in rank(candidates).order]


def test_capacity_counts_before_verdict_data_and_price() -> None:
    full = of("full", 3, fit=True, local=True, price=1.0)
    asleep, free = of("asleep", None, fit=True, local=True, price=1.0), of("free", price=9.0)
    assert names(full, asleep, free) == ["free", "asleep", "full"]


def test_then_the_verdict_then_the_data_then_the_price() -> None:
    assert names(of("new", local=True, price=1.0), of("fit", fit=True)) == ["fit", "new"]
    assert names(of("far", price=1.0), of("near", local=True, price=9.0)) == ["near", "far"]
    assert names(of("unknown"), of("dear", price=3.0), of("cheap", price=2.0)) == [
        "cheap", "dear", "unknown",
    ]  # fmt: skip
    assert names(of("first"), of("second")) == ["first", "second"], "equals stay in order"


def test_an_unfit_cluster_is_left_out_and_one_without_a_queue_must_have_room() -> None:
    assert names(of("bad", fit=False), of("full", 0)) == ["full"]
    assert names(of("hosts", 3, "ssh"), of("full", 0)) == ["full"]
    with pytest.raises(NeedsPerson) as refused:
        rank([of("bad", fit=False), of("hosts", 3, "ssh")])
    assert "bad: 4 of 4 nodes idle, begins now, its last qualification found it unfit" in str(
        refused.value
    )
    assert "hosts: 3 of 4 nodes idle, and no queue" in str(refused.value)


def test_every_place_has_its_reason() -> None:
    found = rank([of("a", 1, price=2.5), of("b", None, fit=True, local=True)])
    assert found.best.name == "b"
    assert found.reasons == (
        "capacity unknown (asleep), qualified, the text lies there, price unknown",
        "1 of 4 nodes idle, queues, not qualified yet, the text does not lie there, "
        "2.5 per GPU-hour",
    )
