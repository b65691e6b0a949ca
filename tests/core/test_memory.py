from pathlib import Path

from longhaul.core.machine import available_in_groups, available_memory


def group(folder: Path, limit: str, use: int, cached: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{use}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


def membership(folder: Path, text: str) -> Path:
    path = folder / "cgroup"
    path.write_text(text)
    return path


def test_the_limit_of_every_group_around_the_process_counts(tmp_path: Path) -> None:
    mine = membership(tmp_path, "0::/slice/job\n")
    group(tmp_path / "slice" / "job", "max", 10, 0, version=2)
    group(tmp_path / "slice", "1000", 700, 50, version=2)
    assert available_in_groups(tmp_path, mine) == [350]


def test_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    mine = membership(tmp_path, "7:cpu:/x\n4:memory,hugetlb:/job\n0::/\n")
    group(tmp_path / "memory" / "job", "500", 600, 20, version=1)
    assert available_in_groups(tmp_path, mine) == [0]


def test_inside_a_container_the_mount_itself_is_the_group(tmp_path: Path) -> None:
    mine = membership(tmp_path, "0::/a/path/of/the/host\n")
    group(tmp_path, "800", 100, 0, version=2)
    assert available_in_groups(tmp_path, mine) == [700]


def test_a_machine_without_groups_has_what_it_has(tmp_path: Path) -> None:
    assert available_in_groups(tmp_path, tmp_path / "none") == []
    assert available_memory() > 0
