"""Layer n + 1 is gathered while layer n computes, in real ranks; `parallel.prefetch` says so."""

from functools import cache

import pytest
from benchmarks.prefetch import LAYERS, Shown, Span, measure, overlaps


@cache
def shown() -> dict[str, Shown]:
    return measure("opt-125m")


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_every_layer_is_gathered_while_the_one_before_it_computes(way: str) -> None:
    assert getattr(shown()["on"], way) == (True,) * (LAYERS - 1)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_without_prefetch_every_layer_is_gathered_when_it_is_needed(way: str) -> None:
    assert getattr(shown()["off"], way) == (False,) * (LAYERS - 1)


def test_what_blocks_until_it_is_there_is_no_overlap() -> None:
    """Begun in time, but taken before the other layer has computed."""
    names = ("all_gather", "all_gather_copy_out", "post_forward", "post_backward_accumulate")
    spans = [
        Span(f"FSDP::{name} (blocks.{layer})", 10.0 * layer + at, 10.0 * layer + at + 1)
        for layer in range(2)
        for at, name in enumerate(names)
        for _ in range(2)
    ]
    early = [
        Span(s.name, 0.5 if "gather" in s.name and "blocks.1" in s.name else s.begin, s.end)
        for s in spans
    ]
    assert overlaps(early, 2)[0] == (False,)
