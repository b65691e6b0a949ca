"""Cause before cure where a step is computed by several ranks: all climb the ladder together."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fork_server import SERVER
from longhaul.core.records import Decision, Event, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.store.catalogue import catalogue

pytestmark = pytest.mark.slow

LAYOUTS = {
    "dp2": ("parallel.replicate=2",),
    "fsdp2": ("parallel.shard=2",),
    "tp2": ("parallel.tensor=2",),
    "pp2": ("parallel.pipeline=2",),
}
COMPARED = ("fsdp2", "pp2")
"""With the same run that does not look: a cut by tensors, and one by layers."""
NOT_LOOKED_FOR = "recover.diagnose=false"


def case(name: str, layout: str, wrong: str, *sets: str) -> dict[str, Any]:
    return {"name": name, "size": 2, "wrong": wrong, "sets": [*LAYOUTS[layout], *sets]}


CASES = (
    *(case(f"{layout} nan", layout, "nan") for layout in LAYOUTS),
    *(case(f"{layout} unasked", layout, "nan", NOT_LOOKED_FOR) for layout in COMPARED),
    case("kernel", "fsdp2", "kernel"),
    case("no room", "dp2", "no room"),
)


class Ran:
    """What a run of several ranks has left."""

    def __init__(self, runs: Path, name: str, codes: list[int]) -> None:
        self.folder = RunFolder(runs / name / "drill")
        self.codes = codes
        self.records: list[Record] = list(read_journal(self.folder))

    @property
    def causes(self) -> list[Event]:
        return [r for r in self.records if isinstance(r, Event) and r.kind == "cause"]

    @property
    def recoveries(self) -> list[Decision]:
        made = [r for r in self.records if isinstance(r, Decision) and r.kind == "recover"]
        return [decision for decision in made if decision.data["actions"] != ["mask"]]

    def state(self) -> dict[str, bytes]:
        found = {}
        for path in sorted(catalogue(self.folder.checkpoints)[-1].path.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as file:
                keys = file.keys()
                found |= {f"{path.name} {k}": file.get_tensor(k).tobytes() for k in keys}
        return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    room = tmp_path_factory.mktemp("causes")
    script = Path(__file__).with_name("seeking_ranks.py")
    arguments = [str(script), json.dumps(CASES), str(room / "prepared"), str(room)]
    process = SERVER.start(arguments, room, os.environ)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output[-3000:]
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {one["name"]: Ran(room, one["name"], one["codes"]) for one in told}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_data_is_told_by_all_ranks_together(ran: dict[str, Ran], layout: str) -> None:
    run = ran[f"{layout} nan"]
    assert run.codes == [0, 0]
    (told,) = run.causes
    assert told.data["cause"] == "data", told.data
    assert 20 < told.data["replayed_steps"] <= 100
    rungs = {"recorded", "as trained", "0.5 of the rate", "other data 1"}
    assert rungs <= told.data["rungs"].keys()
    (decision,) = run.recoveries
    assert decision.data["actions"] == ["rollback", "skip"]


@pytest.mark.parametrize("layout", COMPARED)
def test_looking_for_the_cause_changes_no_bit_of_the_run(ran: dict[str, Ran], layout: str) -> None:
    asked, unasked = ran[f"{layout} nan"], ran[f"{layout} unasked"]
    assert unasked.codes == [0, 0]
    assert not unasked.causes
    assert asked.recoveries[0].data["skip"] == unasked.recoveries[0].data["skip"]
    assert asked.state() == unasked.state()


def test_a_wrong_kernel_of_sharded_weights_stops_the_run_on_all_ranks(ran: dict[str, Ran]) -> None:
    run = ran["kernel"]
    assert run.codes == [17, 17]
    assert run.causes[0].data["cause"] == "parallel or kernel bug", run.causes[0].data
    assert run.recoveries[0].data["actions"] == ["rollback", "stop"]


def test_a_rank_without_room_keeps_all_from_looking_and_the_run_goes_on(
    ran: dict[str, Ran],
) -> None:
    run = ran["no room"]
    assert run.codes == [0, 0]
    assert "another rank does not lend its step" in run.causes[0].data["reason"]
    assert run.recoveries[0].data["actions"] == ["rollback", "skip"]
    assert run.state() == ran["dp2 nan"].state()
