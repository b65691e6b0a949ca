"""A launch as JSON, and back."""

import json

import pytest

from launches import cluster_of, spec_of
from longhaul.cluster.launch_spec import joined, spec_of_json, split
from longhaul.core.errors import UsageError


def test_a_launch_comes_back_as_it_was_written() -> None:
    fault = {"name": "x", "check": "true", "environment": {"A": "é"}}
    spec = spec_of(
        cluster_of(fault=(fault,), hours=1.5, mounts=("a:/b",)), excluded=("a", "b"), spares=2
    )
    assert spec_of_json(spec.to_json(), "here") == spec
    assert spec.wanted == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "null"])
def test_what_is_no_launch_is_refused_by_name(text) -> None:
    with pytest.raises(UsageError, match=r"here: no launch"):
        spec_of_json(text, "here")


def test_an_unknown_field_is_refused() -> None:
    body = json.loads(spec_of(cluster_of()).to_json()) | {"shape": 1}
    with pytest.raises(UsageError, match="no launch"):
        spec_of_json(json.dumps(body), "here")


def test_names_are_joined_once_each() -> None:
    assert joined(["a", "b", "a"]) == "a,b"
    assert split("a,b\n") == ("a", "b")
    assert split("") == ()
