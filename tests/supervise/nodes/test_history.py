from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes import FakeClock
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.run_history import read_run_history
from longhaul.supervise.history import SupervisedRun, unaccounted
from longhaul.supervise.nodes.history import left_out, node_events, node_failures, spans


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "run", FakeClock())


def run_of(folder: RunFolder, attempt: int, clock: FakeClock) -> SupervisedRun:
    lease = SimpleNamespace(attempt=attempt, may_decide=lambda: True)
    return SupervisedRun(folder, lease, clock, say=str)


def began(*names: str, from_step: int = 0) -> dict:
    nodes = [{"name": n, "parts": [f"board:{n}"], "ranks": [k]} for k, n in enumerate(names)]
    return {"nodes": nodes, "from_step": from_step}


def ended(cause: str, reached: int | None, **more) -> dict:
    return {"cause": cause, "remedy": "restart", "reached": reached, "poisoned": None} | more


def write(folder: RunFolder, attempt: int, kind: str, data: dict) -> None:
    run_of(folder, attempt, FakeClock()).emit(kind, 0, **data)


def test_the_worlds_of_a_run_and_how_far_they_came(folder) -> None:
    write(folder, 1, "attempt-began", began("a", "b"))
    write(folder, 1, "attempt-ended", ended("killed", 130))
    write(folder, 2, "attempt-began", began("a", "c", from_step=120))  # its supervisor was killed
    write(folder, 3, "attempt-began", began("a", "c", from_step=200))
    write(folder, 3, "attempt-ended", ended("hang", 207))
    found = spans(node_events(folder))
    hosts = ["".join(node.host for node in span.nodes) for span in found]
    assert hosts == ["ab", "ac", "ac"]
    assert [span.steps_made for span in found] == [130, 80, 7]
    assert [span.hung for span in found] == [False, False, True]


def test_failures_and_suspicions_are_remembered_by_the_next_supervisor(folder) -> None:
    blamed = {"node": "b", "node_parts": ["board:b"], "nodes_reason": "it hung",
              "evicted": {"b": ["board:b"]}}  # fmt: skip
    write(folder, 1, "attempt-ended", ended("hang", 3, **blamed))
    write(folder, 2, "attempt-ended", ended("unknown: x", 3, node=None, evicted={}))
    write(folder, 3, "node-drained", {"evicted": {"c": ["board:c"]}, "nodes_reason": "errors"})
    events = node_events(folder)
    assert [node.host for node, _ in node_failures(events)] == ["b"]
    assert [(out.node.key, out.reason) for out in left_out(events)] == [
        ("board:b", "it hung"), ("board:c", "errors"),
    ]  # fmt: skip


def test_what_is_said_of_nodes_books_no_second_and_makes_no_run_begun(folder) -> None:
    clock = FakeClock()
    run = run_of(folder, 1, clock)
    run.emit("attempt-began", 0, **began("a"))
    assert not read_run_history(folder).begun
    assert unaccounted(folder, 1, began=clock.wall() - 5, now=clock.wall()) == {"start-up": 5.0}
    leader = Journal(folder, 1)
    leader.append(Event(kind="note", attempt=1, time=clock.wall()))
    leader.close()
    first = clock.wall()
    clock.advance(30)
    run.emit("node-probed", 0)
    run.poison(20, "abc", 25, "the same crash")
    assert unaccounted(folder, 1, began=0.0, now=first + 40) == {"detection": 40.0}
