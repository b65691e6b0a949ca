"""Who trains, and who is not well: a thousand nodes stay a page."""

from dataclasses import replace
from html import unescape

import pytest

from fakes import FakeClock
from longhaul.board.facts import read_facts
from longhaul.board.node_table import node_section
from longhaul.board.nodes import read_nodes
from longhaul.board.report import render
from longhaul.core.records import Event
from longhaul.supervise.nodes.ledger import FILE_NAME, NodeEvent, append

NOW = 1_800_000_000.0
HOUR = 3600.0


def event(kind, attempt=1, /, ago=HOUR, step=0, **data):
    return Event(kind=kind, attempt=attempt, step=step, time=NOW - ago, data=data)


def started(attempt=1, count=4, **data):
    return event("attempt-started", attempt, host="node-7", hardware={"count": count}, **data)


def began(*names, attempt=1, slots=8, absent=None, ago=HOUR):
    nodes = [
        {"name": n, "parts": [f"board:{n}"], "ranks": list(range(slots * i, slots * (i + 1)))}
        for i, n in enumerate(names)
    ]
    return event("attempt-began", attempt, ago, nodes=nodes, absent=absent or {},
                 layout="2 replicas", from_step=0)  # fmt: skip


def noted(folder, kind, name, ago=HOUR, **what):
    what = {"reason": f"{name} is {kind}"} | what
    append(
        folder, NodeEvent(kind=kind, parts=(f"board:{name}",), host=name, time=NOW - ago, **what)
    )


def read(tmp_path, *events, **settings):
    return read_nodes(events, settings, tmp_path, NOW)


def health(found):
    return {one.name: one.health for one in found.unwell}


def words(found, live=True):
    return unescape(node_section(found, live=live))


def test_a_run_of_one_process_has_no_such_section(tmp_path, told):
    assert read(tmp_path) is None
    assert read(tmp_path, started(count=1)) is None
    assert read(tmp_path, began("a", slots=1), started(count=1)) is None
    assert node_section(None, live=True) == ""
    assert "Nodes and ranks" not in render(read_facts(told, FakeClock()), "")


def test_ranks_of_one_machine_are_counted(tmp_path):
    found = read(tmp_path, started(count=4))
    assert "Attempt 1 trains with 4 ranks on 1 node: node-7 with ranks 0–3." in words(found)
    assert "No rank was found slow or wrong" in words(found)
    elastic = read(tmp_path, started(count=1), parallel={"elastic": True}, machine={"processes": 3})
    assert elastic.ranks == 3


def test_nodes_that_are_well_are_counted_and_the_others_listed(tmp_path):
    names = [f"node-{number}" for number in range(1000)]
    noted(tmp_path, "cordoned", "node-3", reason="it is hot", who="anna")
    noted(tmp_path, "failed", "node-5", cause="gpu-lost")
    noted(tmp_path, "failed", "node-5", cause="gpu-lost")
    noted(tmp_path, "failed", "node-6", ago=30 * HOUR, cause="gpu-lost")  # long ago
    noted(tmp_path, "corrected", "node-8", ago=600.0, count=61)
    found = read(tmp_path, began(*names, absent={"b": "a spare"}), started(count=8000),
                 event("node-slow", node="node-9", reason="twice as slow"))  # fmt: skip
    assert health(found) == {
        "node-3": "cordoned", "node-5": "suspect", "node-8": "suspect", "node-9": "slow",
    }  # fmt: skip
    text = words(found)
    assert "Nothing is known against 996 of 1,000 nodes; 1 spare at hand." in text
    assert "It is hot (board:node-3, by anna)." in text
    assert "until somebody releases it" in text
    assert "ranks 24–31" in text
    assert "2 failures within a day: gpu-lost ×2." in text
    assert "corrected 61 memory errors within an hour" in text
    assert len(text) < 5000


def test_who_is_released_is_well_again(tmp_path):
    noted(tmp_path, "cordoned", "a")
    noted(tmp_path, "failed", "a", cause="hang")
    assert health(read(tmp_path, began("a", "b"), started())) == {"a": "cordoned"}
    noted(tmp_path, "released", "a", ago=60.0)
    assert health(read(tmp_path, began("a", "b"), started())) == {}


def test_absent_nodes_say_why_and_until_when(tmp_path):
    absent = {
        "b": "it does not answer", "c": "it failed twice", "d": "it has not passed its probe",
        "e": "e has board:e, which was cordoned", "f": "a spare",
    }  # fmt: skip
    noted(tmp_path, "cordoned", "e", reason="ecc-uncorrectable on e")
    found = read(
        tmp_path, began("a", "b", "c", "d", ago=3 * HOUR),
        event("attempt-ended", ago=2 * HOUR, evicted={"c": ["board:c"]},
              nodes_reason="hang on c, which has ended 2 attempts within a day"),
        event("node-probed", ago=2 * HOUR, node="d", passed=False, reason="slow memory"),
        began("a", attempt=2, absent=absent), started(2, count=8),
    )  # fmt: skip
    assert health(found) == {"b": "absent", "c": "left out", "d": "suspect", "e": "cordoned"}
    until = {one.name: one.until_time for one in found.unwell}
    assert until["c"] == NOW - 2 * HOUR + 24 * HOUR
    assert until["d"] == NOW - 2 * HOUR + 600
    text = words(found)
    assert "Hang on c, which has ended 2 attempts within a day." in text
    assert "slow memory" in text
    assert "It does not answer." in text


def test_a_shared_ledger_is_read_where_the_settings_say(tmp_path):
    noted(tmp_path / "shared", "cordoned", "a")
    elsewhere = {"node_ledger": str(tmp_path / "shared")}
    assert health(read(tmp_path, began("a", "b"), started(), supervise=elsewhere))
    assert not health(read(tmp_path, began("a", "b"), started()))
    (tmp_path / FILE_NAME).mkdir()
    found = read(tmp_path, began("a", "b"), started())
    assert "cannot be read" in words(found)


def test_verdicts_failures_and_replicas_are_told(tmp_path):
    slow = {"kind": "straggler", "ranks": [3], "nodes": ["a"], "reason": "rank 3 is slow"}
    corrupt = {"kind": "corrupt", "ranks": [], "among": [1, 2], "nodes": ["a"], "reason": "differ",
               "sound_step": 900}  # fmt: skip
    fails = {"cause": "hang", "rank": 2, "node": "a", "reason": "x"}
    found = read(
        tmp_path, started(),
        *(event("machine-verdict", step=step, **slow) for step in range(20)),
        event("machine-verdict", step=950, **corrupt),
        event("attempt-ended", step=960, **fails), event("attempt-ended", step=970, **fails),
        event("attempt-ended", step=980, **fails | {"cause": "oom"}),
        event("attempt-ended", step=990, reason="finished"),
        event("replica-lost", step=400, rank=1, reason="killed"),
        event("replica-back", step=420, rank=1, peer=0, away_s=12.0),
        event("replica-lost", step=990, rank=2, reason="killed again"),
        event("compared", step=900, what="slot", sound=True),
    )  # fmt: skip
    text = words(found)
    assert (found.failing[0].times, found.failing[0].causes) == (3, {"hang": 2, "oom": 1})
    assert "hang ×2, oom" in text
    assert text.index("step 900 was sound") < text.index("Rank 3 is slow.")
    assert "ranks 1–2" in text
    assert "And 11 more." in text
    assert [(one.replica, one.away) for one in found.replicas] == [(2, True), (1, False)]
    assert "back at step 420 after 12.0 s" in text
    assert "Ranks compared slot 1 time; at step 900 they were alike." in text


def test_replicas_that_all_began_anew_are_not_away(tmp_path):
    lost = event("replica-lost", step=990, rank=2, reason="killed")
    anew = read(tmp_path, started(), lost, started(2))
    assert not anew.replicas[0].away
    healed = read(tmp_path, started(), lost, event("healed", 2, peer=1), started(2))
    assert healed.replicas[0].away


def test_a_run_that_waits_for_nodes_says_so(tmp_path):
    waits = event("node-awaited", 2, reason="b: it does not answer")
    assert "it waits: b: it does" in words(read(tmp_path, began("a", "b"), started(), waits))
    again = began("a", "b", attempt=2)
    assert "waits" not in words(read(tmp_path, began("a", "b"), started(), waits, again))


@pytest.mark.parametrize(
    "data",
    [
        {"nodes": "a", "absent": ["b"]},
        {"nodes": [1, {"name": None}, {"name": "<img src=x>", "parts": 3, "ranks": ["x", -1]}]},
        {"nodes": None, "absent": {"<img src=x>": {"why": "<b>"}}, "layout": "<b>"},
    ],
)
def test_what_a_stranger_wrote_breaks_nothing(tmp_path, data):
    huge = event("attempt-started", hardware={"count": 10**30}, host="<b>")
    odd = {"kind": "<b>", "ranks": "12", "nodes": 5, "reason": "<script>", "sound_step": "x"}
    found = read(tmp_path, huge, event("attempt-began", **data),
                 event("machine-verdict", **odd), event("replica-lost", rank="1"),
                 event("attempt-ended", cause=3, rank=True, evicted=[1]),
                 event("node-probed"), event("node-refused", node="<b>", reason="<i>"),
                 supervise={"node_ledger": 5})  # fmt: skip
    html = node_section(found, live=False)
    for tag in ("<img", "<b>", "<i>", "<script"):
        assert tag not in html
    assert read(tmp_path, huge).ranks < 10**7


def test_the_page_has_the_section_where_there_are_ranks(told):
    facts = read_facts(told, FakeClock())
    nodes = read_nodes([started(count=4)], {}, told.path, NOW)
    page = render(replace(facts, nodes=nodes), "")
    assert '<section id="nodes"><h2>Nodes and ranks</h2>' in page
