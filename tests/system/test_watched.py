"""Ranks that are slow, or wrong and silent about it: real processes on gloo (M5, M13)."""

import json
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fork_server import SERVER

pytestmark = pytest.mark.slow

DEADLINE_S = 200.0
FEW = ("train.steps=6",)
WATCHED = (*FEW, "monitor.hash_every=4", "monitor.witness_every=4")
UNCOMPARED = ("monitor.hash_every=0", "monitor.witness_every=0")
LONG = ("train.steps=150", *UNCOMPARED)
EIGHT = ("train.steps=8", *UNCOMPARED)
LAYOUTS = {
    "dp2": {"replicate": 2},
    "fsdp2": {"shard": 2},
    "tp2": {"tensor": 2},
    "pp2": {"pipeline": 2},
    "dp3": {"replicate": 3},
    "fsdp3": {"shard": 3},
    "hsdp2x2": {"replicate": 2, "shard": 2},
    "dp2xtp2": {"replicate": 2, "tensor": 2},
    "fsdp2xpp2": {"shard": 2, "pipeline": 2},
}
WRONG = {
    # Layout, what one rank does wrong: its gradients by a thousandth from step 3 on, or one bit of
    # a weight once, before step 3.
    ("dp3", "gradient"): "1 gradient 1.001 3",
    ("fsdp3", "gradient"): "2 gradient 1.001 3",
    ("dp3", "weight"): "2 weight 3 3",
    ("dp2", "weight"): "0 weight 3 3",
    ("hsdp2x2", "weight"): "3 weight 3 3",
    ("hsdp2x2", "gradient"): "1 gradient 1.001 3",
    # One that tensor ranks hold alike.
    ("tp2", "norm"): "0 norm 3 3",
}
PACED = ("dp2", "fsdp2", "tp2")
LATE_S = 0.25


def cases() -> list[dict[str, Any]]:
    rows = [(f"{name} watched", name, WATCHED, "") for name in LAYOUTS]
    rows += [(f"{name} alone", name, (*FEW, *UNCOMPARED), "") for name in LAYOUTS]
    rows += [(f"{name} {kind}", name, WATCHED, how) for (name, kind), how in WRONG.items()]
    rows += [(f"{name} slow", name, LONG, "1 slow 1.2 33") for name in PACED]
    rows += [(f"{name} late", name, EIGHT, f"1 late {LATE_S} 1") for name in PACED]
    return [
        {"name": case, "layout": LAYOUTS[name], "sets": sets, "wrong": wrong}
        for case, name, sets, wrong in rows
    ]


@cache
def seen() -> dict[str, Any]:
    """What came of every case."""
    with TemporaryDirectory() as folder:
        asked, result = Path(folder, "cases.json"), Path(folder, "result.jsonl")
        asked.write_text(json.dumps(cases()))
        program = str(Path(__file__).with_name("watched_ranks.py"))
        process = SERVER.start([program, str(asked), str(result), folder], Path.cwd(), os.environ)
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, output
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        rows = [json.loads(line) for line in result.read_text().splitlines()]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_are_watched_train_bit_by_bit_as_if_they_were_not(layout: str) -> None:
    watched, alone = seen()[f"{layout} watched"], seen()[f"{layout} alone"]
    assert len(watched["losses"]) == 6
    assert watched["losses"] == alone["losses"]
    assert watched["weights"] == alone["weights"]
    assert not alone["verdicts"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sound_ranks_agree_wherever_two_have_the_same(layout: str) -> None:
    ways = LAYOUTS[layout]
    slot = "replicate" in ways or "shard" in ways
    # Tensor ranks hold some weights alike too, such as norms.
    weights = "replicate" in ways or "tensor" in ways
    looked = [what for what, there in (("weights", weights), ("slot", slot)) if there]
    expected = [[step, what, "sound", []] for step in (1, 4) for what in looked]
    assert seen()[f"{layout} watched"]["verdicts"] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_share_of_weights_that_can_be_compared_is_known(layout: str) -> None:
    ways, alike = LAYOUTS[layout], seen()[f"{layout} watched"]["alike"]
    if "replicate" in ways:
        assert alike == 1
    else:
        assert (0 < alike < 0.1) if "tensor" in ways else alike == 0


def first(case: str) -> tuple[int, str, str, list[int]]:
    """The first verdict that is not sound, and no other step or kind before it."""
    verdicts = seen()[case]["verdicts"]
    unsound = [verdict for verdict in verdicts if verdict[2] != "sound"]
    assert unsound, verdicts
    return tuple(unsound[0])


@pytest.mark.parametrize(("layout", "rank"), [("dp3", 1), ("fsdp3", 2)])
def test_a_rank_whose_gradients_are_wrong_is_named_at_the_next_look(layout: str, rank: int) -> None:
    assert first(f"{layout} gradient") == (4, "slot", "odd", [rank])


def test_a_replica_with_one_wrong_bit_in_a_weight_is_named_at_the_next_look() -> None:
    assert first("dp3 weight") == (4, "weights", "odd", [2])


def test_of_two_that_differ_nobody_is_accused() -> None:
    assert first("dp2 weight") == (4, "weights", "undecided", [0, 1])
    # The two that hold the shard, of four.
    assert first("hsdp2x2 weight") == (4, "weights", "undecided", [1, 3])


def test_what_tensor_ranks_hold_alike_is_compared_too() -> None:
    assert first("tp2 norm") == (4, "weights", "undecided", [0, 1])


def test_with_four_data_ranks_the_odd_one_is_named_whoever_shares_its_weights() -> None:
    assert first("hsdp2x2 gradient") == (4, "slot", "odd", [1])


@pytest.mark.parametrize("layout", PACED)
def test_a_rank_that_computes_a_fifth_longer_is_named(layout: str) -> None:
    """By a clock of which a pass takes one second; becomes slow before step 33 of 150. In how many
    steps it is named while paces vary: tests/supervise/ranks/test_stragglers.py.
    """
    ((step, rank, slower),) = seen()[f"{layout} slow"]["named"]
    assert 33 < step < 133
    assert rank == 1
    assert slower == pytest.approx(0.2)


@pytest.mark.parametrize("layout", PACED)
def test_waiting_for_a_rank_that_sleeps_is_nobodys_own_time(layout: str) -> None:
    """In processor time of the rank's thread, whatever else the cores do."""
    steps = seen()[f"{layout} late"]["paces"]
    assert len(steps) == 8
    assert all(0 < own < LATE_S for step in steps[1:] for own in step), steps


def test_the_node_of_each_rank_is_known() -> None:
    assert seen()["dp3 watched"]["nodes"] == ["node0", "node1", "node2"]
