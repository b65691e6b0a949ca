"""The page of a qualification is whole, escapes what strangers wrote, and needs no script."""

import re

from longhaul.board.qualification import heat_map, render
from longhaul.cluster.qualify.outcome import NodeOutcome, Outcome
from longhaul.cluster.qualify.records import Check

EVIL = "<script>alert(1)</script>"


def outcome() -> Outcome:
    check = Check(
        group="links", name="pair rate", node=EVIL, verdict="fail", value=1e9, unit="B/s",
        expected="at least 2 GB/s", source="here", reason=EVIL, remedy="the cable",
    )  # fmt: skip
    nodes = (NodeOutcome(host=EVIL, parts=("board:A",), hardware=EVIL, devices=8, slowest=1e14,
                         fit=False, reason=EVIL),)  # fmt: skip
    pairs = {(EVIL, "b"): 1e9, ("b", EVIL): 50e9}
    return Outcome(time=0.0, quick=False, ranks=2, checks=(check,), nodes=nodes, rates=pairs,
                   latencies=dict.fromkeys(pairs, 1e-05))  # fmt: skip


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    page = render(outcome())
    assert EVIL not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_the_slow_pair_has_the_colour_of_alarm() -> None:
    drawn = heat_map({("a", "b"): 50e9, ("b", "a"): 50e9, ("a", "c"): 50e9, ("c", "a"): 10e9},
                     "B/s", late=False)  # fmt: skip
    colours = {
        said: share
        for share, said in re.findall(r"alarm\) (\d+)%.*?<title>(.*?):", drawn, flags=re.DOTALL)
    }
    assert colours["c → a"] == "100"
    assert colours["a → b"] == "0"


def test_a_thousand_nodes_are_drawn_without_numbers() -> None:
    names = [f"n{number}" for number in range(120)]
    drawn = heat_map({(a, b): 1e9 for a in names for b in names if a != b}, "B/s", late=False)
    assert drawn.count("<rect") == 120 * 119
    assert "<text" not in drawn
