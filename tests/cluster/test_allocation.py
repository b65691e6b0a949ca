"""Whether a job begins on the nodes it was given."""

from longhaul.cluster.allocation import (
    Given,
    after_qualification,
    evicted_hosts,
    judge,
    node_entries,
)
from longhaul.core.errors import ExitCode

A, B, C = Given("a", "10.0.0.1"), Given("b", "10.0.0.2", ("srun", "b")), Given("c", "10.0.0.3")


def test_good_nodes_are_used_and_what_is_excluded_stays_so() -> None:
    found = judge([A, B, C], 2, ["x"], [])
    assert found.code == ExitCode.FINISHED
    assert found.used == (A, B, C)
    assert found.excluded == ("x",)
    assert "1 of them spare" in found.reason
    assert "none of x is among them" in found.reason


def test_an_evicted_node_sends_the_job_back_with_its_name() -> None:
    found = judge([A, B], 2, ["b"], [])
    assert (found.code, found.excluded) == (ExitCode.START_AGAIN, ("b",))
    assert found.reason == "the job was given b, which was evicted"
    assert not found.used


def test_an_exclusion_without_effect_needs_a_person() -> None:
    """Else the job would come back with the same node for ever."""
    found = judge([A, B], 2, ["b"], ["b"])
    assert found.code == ExitCode.NEEDS_PERSON
    assert "gave b although it excludes it" in found.reason


def test_too_few_nodes_send_the_job_back() -> None:
    assert judge([A], 2, [], []).code == ExitCode.START_AGAIN


def test_unfit_nodes_are_left_out_if_enough_are_fit() -> None:
    whole = judge([A, B, C], 2, [], [])
    assert after_qualification(whole, {}, 2) is whole
    found = after_qualification(whole, {"a": "slow disk"}, 2)
    assert (found.code, found.used, found.excluded) == (ExitCode.FINISHED, (B, C), ("a",))
    few = after_qualification(whole, {"a": "slow disk", "b": "hot"}, 2)
    assert (few.code, few.excluded) == (ExitCode.START_AGAIN, ("a", "b"))
    assert few.reason == "a is not fit: slow disk; b is not fit: hot"
    none = after_qualification(whole, dict.fromkeys("abc", "no qualify"), 2)
    assert none.code == ExitCode.NEEDS_PERSON, "the check itself, or the cluster, is to blame"


def test_the_first_nodes_train_and_the_others_are_spares() -> None:
    entries = node_entries([A, B, C], 2, 8)
    assert [(e["name"], e["slots"], e["spare"]) for e in entries] == [
        ("a", 8, False), ("b", 8, False), ("c", 8, True),
    ]  # fmt: skip
    assert entries[1]["command"] == ["srun", "b"]
    assert evicted_hosts({"gpu:1": "b", "board:2": "b"}, ["a"]) == ("a", "b")
