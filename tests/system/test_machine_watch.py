"""A run in which one rank computes wrong numbers, from its recipe to its exit codes (M13)."""

import os
import socket
from pathlib import Path

from fork_server import SERVER
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from small_runs import FEW_HELD_OUT

DEADLINE_S = 200.0
SETS = (
    FEW_HELD_OUT,
    "train.steps=24", "optim.schedule.warmup_steps=2", "batch.sequences=12",
    "batch.micro_sequences=2", "batch.stages=[]",
    "checkpoint.interval_steps=0", "evaluation.interval_steps=0", "data.sources.0.weight=1",
    "parallel.replicate=3", "monitor.hash_every=4", "monitor.witness_every=4",
)  # fmt: skip


def test_all_ranks_leave_naming_the_one_that_is_wrong_and_the_journal_says_it_too(
    tmp_path: Path, shared_prepared: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(__file__).with_name("crooked_rank.py")), "train", "drill",
        *(word for one in SETS for word in ("--set", one)),
        "--runs-dir", str(tmp_path), "--prepared-dir", str(shared_prepared),
    ]  # fmt: skip
    ranks, outputs = [], [tmp_path / f"rank-{rank}.txt" for rank in range(3)]
    try:
        for rank, output in enumerate(outputs):
            place = {
                "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "LONGHAUL_NODE": f"node{rank}",
            }  # fmt: skip
            with output.open("w") as sink:
                ranks.append(SERVER.start(command, tmp_path, os.environ | place, sink))
        codes = [rank.wait(DEADLINE_S) for rank in ranks]
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
            each.wait()
    said = [output.read_text() for output in outputs]
    assert codes == [1, 1, 1], said
    for each in said:
        last = each.strip().splitlines()[-1]
        assert last.startswith("SilentCorruption: rank 1: step 8: rank 1 computes other"), each
    events = [r for r in read_journal(RunFolder(tmp_path / "drill")) if isinstance(r, Event)]
    (verdict,) = [event for event in events if event.kind == "machine-verdict"]
    told = {key: verdict.data[key] for key in ("kind", "ranks", "nodes", "sound_step")}
    assert told == {"kind": "corrupt", "ranks": [1], "nodes": ["node1"], "sound_step": 4}
    compared = [(e.step, e.data["what"], e.data["sound"]) for e in events if e.kind == "compared"]
    assert compared[-2:] == [(8, "weights", True), (8, "slot", False)]
    assert all(sound for _, _, sound in compared[:-1])
