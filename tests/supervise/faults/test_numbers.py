from pathlib import Path

from longhaul.logbook.folder import RunFolder
from longhaul.supervise.faults.machines import parse_fault
from longhaul.supervise.faults.numbers import Fault, lay, read_disturbance


def test_a_disturbance_is_read_back_as_it_was_laid(tmp_path: Path) -> None:
    faults = (
        Fault("jolt", 0.4, made=(10, 20), every=5, lasting=2, above_lr=1e-3),
        Fault("nan-loss", draws=(8, 16)),
    )
    machine = (parse_fault("kill@rank1:step20"), parse_fault("slow:1.2@nodeA:step10-60"))
    lay(RunFolder(tmp_path), faults, blind=True, machine=machine)
    found = read_disturbance(RunFolder(tmp_path))
    assert found.faults == faults
    assert found.blind
    assert found.machine == machine
