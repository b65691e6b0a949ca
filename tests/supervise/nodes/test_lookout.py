import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.config.recover import NodeSection, SuperviseSection
from longhaul.logbook.folder import create_run
from longhaul.parallel.layout import Layout
from longhaul.supervise.causes import Cause, load_signatures
from longhaul.supervise.history import SupervisedRun
from longhaul.supervise.nodes import health_monitor as lookout_module
from longhaul.supervise.nodes.fleet import Fleet
from longhaul.supervise.nodes.health_monitor import Drain, NodeHealthMonitor
from longhaul.supervise.nodes.ledger import NodeEvent, append, read
from longhaul.supervise.nodes.placement import NodePlan


@dataclass
class Held:
    """As much of a lease as is asked for."""

    attempt: int = 1

    def may_decide(self) -> bool:
        return True


@dataclass
class Scene:
    """Two nodes that train, and their counters."""

    health_monitor: NodeHealthMonitor
    fleet: Fleet
    clock: FakeClock
    counters: Path

    def count(self, corrected: int, uncorrected: int = 0) -> Cause | Drain | None:
        """Let the counters stand so, and look until they were read."""
        body = {"corrected": corrected, "uncorrected": uncorrected}
        self.counters.write_text(json.dumps(body))
        self.clock.advance(61)
        sight, deadline = self.health_monitor.look(), time.monotonic() + 60
        while sight is None and self.health_monitor._counting:
            assert time.monotonic() < deadline
            time.sleep(0.005)
            sight = self.health_monitor.look()
        return sight


@pytest.fixture
def scene(tmp_path: Path, monkeypatch):
    counters = tmp_path / "counters.json"
    read_them = f"print(open({str(counters)!r}).read())"
    words = [sys.executable, "-c", read_them]
    monkeypatch.setattr(lookout_module, "own_words", lambda command, errors: words)
    monkeypatch.setattr(lookout_module, "kernel_lines", lambda since: [])
    folder, clock = create_run(tmp_path / "run", FakeClock()), FakeClock()
    imitated = NodeSection(name="b", identity=("board:B",))
    settings = SuperviseSection(node=(NodeSection(name="a"), imitated))
    plan = NodePlan(settings, Layout(2), 8, tmp_path)
    fleet = Fleet(SupervisedRun(folder, Held(), clock, lambda text: None), plan)
    assert fleet.allocate(lambda seconds: True) is not None
    watch = NodeHealthMonitor(fleet, load_signatures())
    yield Scene(watch, fleet, clock, counters)
    watch.close()


def test_only_what_counters_gain_is_counted(scene) -> None:
    assert scene.count(5000) is None, "since some boot long ago"
    assert scene.count(5020) is None
    corrected = [event for event in read(scene.fleet.plan.ledger) if event.kind == "corrected"]
    assert [(event.host, event.count) for event in corrected] == [("a", 20)]


def test_a_pile_of_corrected_errors_wants_a_restart_once(scene) -> None:
    scene.count(0)
    drain = scene.count(75)
    assert isinstance(drain, Drain)
    assert (drain.node, drain.at_once) == ("a", False)
    assert scene.count(160) is None


def test_lost_memory_ends_the_attempt_and_names_the_node(scene) -> None:
    scene.count(0, 3)
    cause = scene.count(0, 4)
    assert cause is not None
    assert (cause.name, cause.remedy, cause.rank) == ("ecc-uncorrectable", "cordon", 0)
    assert cause.message.startswith("a counts 4 errors")


def test_a_person_cordons_a_node_that_trains_and_it_is_left_at_the_next_checkpoint(scene) -> None:
    assert scene.health_monitor.look() is None
    word = NodeEvent(kind="cordoned", parts=("board:B",), host="b", time=scene.clock.wall(),
                     reason="it smells burnt", who="ann")  # fmt: skip
    append(scene.fleet.plan.ledger, word)
    assert scene.health_monitor.look() is None, "not before it looks again"
    scene.clock.advance(11)
    drain = scene.health_monitor.look()
    assert isinstance(drain, Drain)
    assert drain.reason == "b has been cordoned by ann: it smells burnt"
    assert not drain.at_once
    scene.clock.advance(11)
    assert scene.health_monitor.look() is None, "once"
    world = scene.fleet.allocate(lambda seconds: True)
    assert world is not None
    assert world.names == ("a",)
