"""`longhaul qualify` as a person and a scheduler run it, and the faults that need no root."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from drills.qualification import alone, drills, environment, together

BY_NAME = {drill.name: drill for drill in drills()}


def longhaul(room: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longhaul", *words], cwd=room, text=True, env=environment(),
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_quick_look_at_host_and_storage_for_a_scheduler(tmp_path: Path) -> None:
    ended = longhaul(tmp_path, "qualify", "quickstart", "--quick", "--checks", "storage",
                     "--json", "found.json", "--page", "page.html")  # fmt: skip
    found = json.loads((tmp_path / "found.json").read_text())
    assert ended.returncode == found["exit_code"] == 0, ended.stdout + ended.stderr
    assert found["interval_s"] > 0
    assert {check["group"] for check in found["checks"]} == {"storage"}
    assert (tmp_path / "qualify/nodes.jsonl").exists()
    assert "Fit" in (tmp_path / "page.html").read_text()
    compared = longhaul(tmp_path, "qualify", "compare", "found.json", "found.json", "--price", "2")
    assert compared.returncode == 0, compared.stderr
    assert "expected goodput" in compared.stdout


def test_a_flipped_bit_ends_with_17_and_its_evidence_has_no_path(tmp_path: Path) -> None:
    ended = alone(tmp_path, "flip-memory", "memory")
    assert BY_NAME["Q5"].wrong(ended) == "", ended.output
    made = longhaul(tmp_path, "evidence", os.uname().nodename, "--from", "out", "--to", "e.tar.gz")
    assert made.returncode == 0, made.stderr
    with tarfile.open(tmp_path / "e.tar.gz") as archive:
        texts = {
            Path(member.name).name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert "did not keep" in texts["README.md"]
    assert str(tmp_path) not in "".join(texts.values())


def test_mistakes_are_told_without_a_traceback(tmp_path: Path) -> None:
    for words, said in (
        (("--checks", "disks"), "disks is no group"),
        (("compare", "a.json"), "two outcomes are needed"),
        (("--folder", "nowhere"), "nowhere is no folder"),
    ):
        ended = longhaul(tmp_path, "qualify", *words)
        assert ended.returncode == 2
        assert said in ended.stderr + ended.stdout
        assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_each_fault_is_found_and_named(name: str, tmp_path: Path) -> None:
    drill = BY_NAME[name]
    if why := drill.needs():
        pytest.skip(why)
    ended = drill.run(tmp_path)
    assert drill.wrong(ended) == "", ended.output


@pytest.mark.slow
def test_three_healthy_nodes_are_fit(tmp_path: Path) -> None:
    ended = together(tmp_path, ["none"] * 3, "")
    assert (ended.code, ended.findings) == (0, []), ended.output
