"""What an outcome leaves in the node ledger, and what placement and people make of it."""

from pathlib import Path

import pytest

from longhaul.cluster.qualify.outcome import Outcome, judge, outcome_of
from longhaul.cluster.qualify.records import Measurement, Report
from longhaul.cluster.qualify.remembering import events_of, past_of, response_times
from longhaul.core.errors import UsageError
from longhaul.supervise.nodes.ledger import NodeEvent, append, node_of, read
from longhaul.supervise.nodes.reputation import admit

NODE = node_of("a", {"board:A"})


def outcome(wrong: str = "", value: float = 100.0, time: float = 1000.0) -> Outcome:
    bits = Measurement(group="compute", name="same bits", device="core 0", wrong=wrong)
    speed = Measurement(
        group="compute", name="product fp32", device="core 0", value=value, unit="FLOP/s"
    )
    kept = Measurement(group="compute", name="sustained", device="core 0", value=1.0, unit="share")
    report = Report(rank=0, host="a", parts=("board:A",), hardware="x", time=time,
                    measurements=(bits, speed, kept))  # fmt: skip
    return judge([report], {}, size=1, time=time, quick=True, groups=("compute",))


def remember(folder: Path, found: Outcome) -> None:
    for event in events_of(found, read(folder)):
        append(folder, event)


def test_placement_refuses_a_node_that_failed_until_it_passes(tmp_path: Path) -> None:
    remember(tmp_path, outcome())
    assert admit(NODE, read(tmp_path), 1001.0).verdict == "take"
    remember(tmp_path, outcome("wrong bits", time=2000.0))
    refused = admit(NODE, read(tmp_path), 2001.0)
    assert refused.verdict == "refuse"
    assert "wrong bits" in refused.reason
    remember(tmp_path, outcome(time=3000.0))
    assert admit(NODE, read(tmp_path), 3001.0).verdict != "refuse"
    assert response_times(read(tmp_path)) == (1000.0,)


def test_a_cordon_of_a_person_is_not_lifted_by_passing(tmp_path: Path) -> None:
    append(tmp_path, NodeEvent(kind="cordoned", parts=("board:A",), host="a", time=1.0,
                               reason="it is hot", who="someone"))  # fmt: skip
    remember(tmp_path, outcome())
    assert admit(NODE, read(tmp_path), 1001.0).verdict == "refuse"


def test_failing_twice_cordons_once(tmp_path: Path) -> None:
    for _ in range(2):
        remember(tmp_path, outcome("wrong bits"))
    assert [event.kind for event in read(tmp_path)].count("cordoned") == 1


def test_a_full_disk_keeps_no_node_out() -> None:
    full = Measurement(group="storage", name="space", device="/x", wrong="full")
    report = Report(rank=0, host="a", parts=("board:A",), hardware="x", time=0.0,
                    measurements=(full,))  # fmt: skip
    found = judge([report], {}, size=1, time=0.0, quick=True, groups=("storage",))
    assert found.code == 17
    assert [(e.kind, e.passed) for e in events_of(found, ())] == [("probed", True)]


def test_history_holds_what_was_not_flagged(tmp_path: Path) -> None:
    for value in (100.0, 101.0, 102.0):
        remember(tmp_path, outcome(value=value))
    report = Report(rank=0, host="a", parts=("board:A",), hardware="x", time=0.0)
    past = past_of([report], read(tmp_path))
    assert past["a"]["product fp32@core 0"] == [100.0, 101.0, 102.0]


def test_a_line_of_the_ledger_is_less_than_a_page(tmp_path: Path) -> None:
    many = tuple(
        Measurement(group="links", name="pair rate", device=f"a → node-{n:04}", value=1.0 + n,
                    unit="B/s")
        for n in range(2000)
    )  # fmt: skip
    report = Report(rank=0, host="a", parts=("board:A",), hardware="x", time=0.0, measurements=many)
    found = judge([report], {}, size=1, time=0.0, quick=True, groups=("links",))
    remember(tmp_path, found)
    assert all(len(line) < 4096 for line in (tmp_path / "nodes.jsonl").read_bytes().splitlines())


def test_an_outcome_comes_back_as_it_was_written() -> None:
    found = outcome("wrong bits")
    body = found.as_json()
    assert body["exit_code"] == 17
    assert outcome_of(body, "x.json") == found
    with pytest.raises(UsageError, match=r"x\.json"):
        outcome_of({"format": 1}, "x.json")


def test_usable_speed_is_the_slowest_fit_device_times_all() -> None:
    assert outcome().usable == 100.0
    assert outcome("wrong bits").usable is None


def node_battery(time: float, *, quick: bool, **wrong: str) -> Outcome:
    """A battery of the checks that are named, each with what is wrong about it."""
    made = tuple(
        Measurement(group="compute", name=name, device="core 0", wrong=reason)
        for name, reason in wrong.items()
    )
    report = Report(rank=0, host="a", parts=("board:A",), hardware="x", time=time,
                    measurements=made)  # fmt: skip
    return judge([report], {}, size=1, time=time, quick=quick, groups=("compute",))


@pytest.mark.parametrize(
    ("quick", "looked_at", "verdict"),
    [
        (False, {"bits": "", "speed": ""}, "take"),
        (False, {"speed": ""}, "refuse"),  # what it had failed was not looked at
        (True, {"bits": "", "speed": ""}, "refuse"),  # for seconds instead of minutes
    ],
)
def test_only_what_was_failed_and_looked_at_as_long_again_lifts_a_cordon(
    tmp_path: Path, quick: bool, looked_at: dict[str, str], verdict: str
) -> None:
    remember(tmp_path, node_battery(1000.0, quick=False, bits="other ones", speed=""))
    remember(tmp_path, node_battery(2000.0, quick=quick, **looked_at))
    found = admit(NODE, read(tmp_path), 2001.0).verdict
    assert (found == "refuse") is (verdict == "refuse")
