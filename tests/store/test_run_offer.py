"""The offer of a run: whole, or none."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.run_offer import (
    RunOffer,
    Text,
    offers,
    parse_offer,
    render_offer,
    take,
    taken_by,
)
from longhaul.store.store_files import StoreFiles

OFFER = RunOffer(
    move="0123456789abcdef", attempt=7, created=1e9, source="a", destination="b", step=63,
    manifest="0" * 64, edition="book/000007-000001-01234567.json",
    texts=(Text(name="text-1", identity="1" * 64),), who="anna", reason="größer", time=1e9 + 5,
)  # fmt: skip


def test_an_offer_is_read_as_it_was_written() -> None:
    assert parse_offer(render_offer(OFFER), "x") == OFFER


@given(st.integers(0, len(render_offer(OFFER)) - 1), st.integers(1, 255))
def test_no_byte_of_it_may_differ(at: int, change: int) -> None:
    content = bytearray(render_offer(OFFER))
    content[at] ^= change
    with pytest.raises(RefusedCheckpoint):
        parse_offer(bytes(content), "x")


def test_half_an_offer_is_none_and_the_newest_comes_first(tmp_path: Path) -> None:
    files = StoreFiles(str(tmp_path))
    assert offers(files) == []
    later = replace(OFFER, attempt=12, move="f" * 16)
    for offer in (later, OFFER):
        files.send_bytes(render_offer(offer), offer.path)
    (tmp_path / "moves" / "000013-ffffffffffffffff.json").write_bytes(render_offer(OFFER)[:99])
    (tmp_path / "moves" / "000014-ffffffffffffffff.json").write_bytes(render_offer(OFFER))
    (tmp_path / "moves" / "note.txt").write_text("hello")
    assert offers(files) == [later, OFFER]


def test_who_took_it_is_known(tmp_path: Path) -> None:
    files = StoreFiles(str(tmp_path))
    files.send_bytes(render_offer(OFFER), OFFER.path)
    assert taken_by(files, OFFER) == ""
    take(files, OFFER, "anna: /runs/x on node1")
    assert taken_by(files, OFFER) == "anna: /runs/x on node1"
    assert offers(files) == [OFFER]
