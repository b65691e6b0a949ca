import json
from pathlib import Path

from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.fault import Fault, parse_fault
from longhaul.run.drill.laid import Done, lay, note_done, read_done, read_laid


def test_faults_are_read_back_as_they_were_laid(tmp_path: Path) -> None:
    faults = (
        Fault("bitflip-grad", first=4, last=9, rank=2, attempt=3, strength="30"),
        parse_fault("kill@rank1:step20"),
        parse_fault("slow:1.2@nodeA:step10-60"),
    )
    lay(RunFolder(tmp_path), faults)
    assert read_laid(RunFolder(tmp_path)) == faults


def test_what_was_done_is_remembered_though_the_machine_went_in_mid_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_done(folder) == []
    done = [Done(n, f"kill@rank{n}:step3", n, "", 1, 3, 17.5 + n) for n in range(2)]
    for item in done:
        note_done(folder, item)
    memory = tmp_path / "drill-done.jsonl"
    memory.write_text(memory.read_text() + json.dumps({"number": 2})[:-4])
    assert read_done(folder) == done
    later = Done(7, "stop@rank0:step9", 0, "A", 2, 9, 20.0)
    note_done(folder, later)
    assert read_done(folder) == [*done, later]
