"""What stands before `data.loss_from` in a document is context: it adds nothing to the loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError
from longhaul.data.loss_mask import IGNORED, LossMask, loss_mask_of
from longhaul.data.prepare import _decisive

BEGIN, END = 7, 9
MASK = LossMask(BEGIN, END)


def counted(tokens: list[int]) -> list[int]:
    targets = MASK.targets(np.array([tokens], dtype=np.int64))[0]
    return [int(target) for target in targets if target != IGNORED]


def test_the_answer_and_its_end_count_and_the_question_does_not() -> None:
    assert counted([1, 2, BEGIN, 3, 4, END, 5, BEGIN, 6, END]) == [3, 4, END, 6, END]


def test_a_window_that_begins_in_a_question_ignores_the_rest_of_it() -> None:
    assert counted([1, 1, 2, BEGIN, 3]) == [3]


def test_a_window_that_begins_in_an_answer_counts_the_rest_of_it() -> None:
    assert counted([1, 3, 4, END, 5, BEGIN, 6]) == [3, 4, END, 6]


def test_a_window_without_any_sign_counts() -> None:
    assert counted([1, 2, 3]) == [2, 3]


def test_a_second_sign_in_an_answer_is_a_word_of_it() -> None:
    assert counted([1, BEGIN, 2, BEGIN, 3, END]) == [2, BEGIN, 3, END]


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=2, max_size=12))
def test_each_target_of_whole_documents_is_as_a_loop_finds_it(parts: list[list[int]]) -> None:
    tokens: list[int] = [END]
    expected: list[int] = []
    for source, target in zip(parts[::2], parts[1::2], strict=False):
        tokens += [*source, BEGIN, *target, END]
        expected += [*target, END]
    assert counted(tokens) == expected


def test_rows_are_judged_apart() -> None:
    rows = np.array([[1, BEGIN, 3, 4], [1, 2, 3, END]], dtype=np.int64)
    assert MASK.targets(rows).tolist() == [[IGNORED, 3, 4], [2, 3, END]]


class _Letters:
    end_of_text: int | None = END

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(letter) for letter in text])


class _Text:
    def __init__(self) -> None:
        self.tokenizer = _Letters()


def test_a_sign_of_two_tokens_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"loss_from: '=>' is 2 tokens"):
        loss_mask_of("=>", _Text())  # type: ignore[arg-type]
    assert loss_mask_of("", None) is None  # type: ignore[arg-type]
    assert loss_mask_of(">", _Text()) == LossMask(ord(">"), END)  # type: ignore[arg-type]


def test_documents_without_an_end_are_refused() -> None:
    text = _Text()
    text.tokenizer.end_of_text = None
    with pytest.raises(DataError, match="no end of text"):
        loss_mask_of(">", text)  # type: ignore[arg-type]


def test_what_counts_in_the_loss_is_no_part_of_what_is_prepared() -> None:
    """Text that was prepared before there was such a setting keeps its folder."""
    data = load_recipe("drill").recipe.data
    assert _decisive(data.model_copy(update={"loss_from": "x"})) == _decisive(data)
    assert "loss_from" not in _decisive(data)
