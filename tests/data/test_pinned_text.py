"""How a run speaks of its text."""

from longhaul.data.verification import _listed


def test_one_source_is_told_in_the_line_and_several_below_it() -> None:
    assert _listed("first: 5 tokens") == "first: 5 tokens"
    assert _listed("first: 5 tokens\nsecond: 6 tokens") == (
        "2 sources\n  first: 5 tokens\n  second: 6 tokens"
    )
