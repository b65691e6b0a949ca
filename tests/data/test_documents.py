from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.documents import cut_text


@given(st.text(alphabet="ab\né", max_size=200), st.integers(1, 30))
def test_pieces_add_up_and_are_small_enough(text, limit):
    pieces = cut_text(text, limit)
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)


def test_cut_falls_after_a_line_end_where_there_is_one():
    assert cut_text("aaaa\nbbbb\ncccc\n", 11) == ["aaaa\nbbbb\n", "cccc\n"]
    assert cut_text("aaaaaaa", 3) == ["aaa", "aaa", "a"]
