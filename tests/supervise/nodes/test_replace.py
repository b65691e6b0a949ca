import time

import pytest

from longhaul.config.recover import NodeSection
from longhaul.supervise.nodes.census import delivered, order
from longhaul.supervise.nodes.ledger import node_of

LOST = node_of("b", ["board:B"])


def result(command: str):
    ordered, deadline = order(command, LOST), time.monotonic() + 60
    while (answer := ordered.answer) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    ordered.close()
    return delivered(answer)


@pytest.mark.parametrize(
    "printed",
    ['{"name": "n7", "slots": 2}', 'name = "n7"\\nslots = 2', '[[node]]\\nname = "n7"\\nslots = 2',
     '[[supervise.node]]\\nname = "n7"\\nslots = 2'],
)  # fmt: skip
def test_a_node_may_be_printed_as_json_or_as_in_a_recipe(printed) -> None:
    assert result(f"printf '{printed}'") == NodeSection(name="n7", slots=2)


def test_the_command_knows_in_whose_place() -> None:
    said = result('printf \'{"name": "%s-%s"}\' "$LONGHAUL_NODE" "${LONGHAUL_NODE_PARTS#board:}"')
    assert said == NodeSection(name="b-B")


@pytest.mark.parametrize(
    ("command", "why"),
    [("exit 3", "exit code 3"), ("echo sorry", "'sorry', which is no node"),
     ('echo \'{"name": "x", "gpus": 8}\'', "which is no node")],
)  # fmt: skip
def test_what_is_no_node_is_told_with_what_was_printed(command, why) -> None:
    said = result(command)
    assert isinstance(said, str)
    assert said.startswith("supervise.replace_command")
    assert why in said
