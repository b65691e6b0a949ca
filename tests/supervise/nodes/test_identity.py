from pathlib import Path

import pytest

from longhaul.config.recover import NodeSection
from longhaul.supervise.nodes.census import Census
from longhaul.supervise.nodes.ledger import node_of, read_node, serial_or_none
from longhaul.supervise.nodes.qualify import Answer

UUIDS = [f"GPU-{number:08x}-1111-2222-3333-444455556666" for number in range(2)]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def system(root: Path, board: str = "PF2ABC", gpus=tuple(UUIDS), machine_id: str = "ab12") -> Path:
    for number, gpu in enumerate(gpus):
        write(
            root / f"proc/driver/nvidia/gpus/0000:{number}/information",
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {gpu}\nBus Type: \t PCIe\n",
        )
    write(root / "sys/class/dmi/id/board_serial", f"{board}\n")
    write(root / "etc/machine-id", f"{machine_id}\n")
    return root


def test_a_machine_is_known_by_its_gpus_and_its_board(tmp_path: Path) -> None:
    node = read_node(system(tmp_path), "a-01")
    assert node.host == "a-01"
    assert node.parts == {f"gpu:{UUIDS[0]}", f"gpu:{UUIDS[1]}", "board:PF2ABC"}
    assert node.key == "board:PF2ABC"


def test_a_machine_that_tells_nothing_is_known_by_its_name(tmp_path: Path) -> None:
    assert read_node(tmp_path, "a-01").parts == {"host:a-01"}
    assert read_node(tmp_path).host


def test_a_cloned_image_does_not_make_two_machines_one(tmp_path: Path) -> None:
    one = read_node(system(tmp_path / "1", "AAA1", UUIDS[:1], "cloned"), "a")
    two = read_node(system(tmp_path / "2", "BBB2", UUIDS[1:], "cloned"), "b")
    assert not one.shares(two.parts)
    bare = [read_node(system(tmp_path / host, "", (), host), host) for host in ("m1", "m2")]
    assert not bare[0].shares(bare[1].parts)
    assert bare[0].shares({"machine:m1"})


def test_a_new_name_or_a_new_installation_hides_nothing() -> None:
    before = node_of("a-01", ["gpu:1", "board:1", "machine:old"])
    assert before.shares(node_of("b-77", ["gpu:1", "board:1", "machine:new"]).parts)
    assert before.shares(node_of("b-77", ["gpu:1", "board:2", "machine:new"]).parts)


@pytest.mark.parametrize(
    "text",
    ["", "  ", "None", "To be filled by O.E.M.", "0000000", "Default string", "N/A",
     "Not Specified", "123456789", "xxxxxx", "Base Board Serial Number"],
)  # fmt: skip
def test_what_makers_leave_in_place_of_a_serial_is_none(text: str) -> None:
    assert serial_or_none(text) == ""


def test_a_serial_is_one() -> None:
    assert serial_or_none(" MJ0 0123-A\n") == "MJ0 0123-A"


@pytest.mark.parametrize(
    ("said", "known_by"),
    [(["board:B"], "board:B"), (["machine:m"], "machine:m"), (["host:container-7"], "host:a"),
     ([], "host:a")],
)  # fmt: skip
def test_a_node_without_serial_numbers_is_known_by_the_recipes_name(
    said: list[str], known_by: str
) -> None:
    """And not by what it calls itself, which is another word after each start of a container."""
    census = Census([NodeSection(name="a", command=("ssh", "a"))], [])
    census.answered("a", Answer(True, "", {"parts": said}))
    assert census.named("a").node.parts == {known_by}
