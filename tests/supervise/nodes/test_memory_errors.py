from pathlib import Path

from longhaul.supervise.nodes.qualify import HIGH_RATE, corrected_in, host_errors


def test_corrected_errors_are_counted_from_messages() -> None:
    said = (
        "EDAC MC0: 120 CE memory read error on CPU_SrcID#0_MC#0",
        "EDAC MC1: 3 CE memory scrubbing error",
        "EDAC MC1: 1 UE memory read error",
    )
    assert corrected_in("\n".join(said)) == 123
    assert corrected_in("NVRM: Xid (PCI:0000:3b:00): 92, High single-bit ECC error rate") == (
        HIGH_RATE
    )
    assert corrected_in("NVRM: Xid (PCI:0000:3b:00): 48, pid=1") == 0


def test_the_hosts_counters_are_added_up(tmp_path: Path) -> None:
    assert host_errors(tmp_path) == (0, 0)
    for number, (corrected, uncorrected) in enumerate([(5, 0), (7, 1)]):
        folder = tmp_path / f"sys/devices/system/edac/mc/mc{number}"
        folder.mkdir(parents=True)
        (folder / "ce_count").write_text(f"{corrected}\n")
        (folder / "ue_count").write_text(f"{uncorrected}\n")
    assert host_errors(tmp_path) == (12, 1)
