import base64
import random

import pytest

from longhaul.config.corpus import FilterSection
from longhaul.data.clean.measures import bits_per_byte, limits_of
from longhaul.data.clean.prose import Prose


def reason(text, **settings):
    prose = Prose(text)
    found = (limit.reason(prose) for limit in limits_of(FilterSection.model_validate(settings)))
    return next(filter(None, found), None)


def words(number, word="word"):
    return " ".join([word] * number)


@pytest.mark.parametrize(
    ("setting", "goes", "stays", "told"),
    [
        ("words", words(49), words(50), "words < 50"),
        ("words", words(100_001, "w"), words(100_000, "w"), "words > 100000"),
        ("word_length", "ab cde", "abc def", "word_length < 3"),
        ("word_length", f"{'a' * 10} {'a' * 11}", f"{'a' * 10} {'b' * 10}", "word_length > 10"),
        ("symbols", f"# # {words(17)}", f"# # {words(18)}", "symbols > 0.1"),
        ("symbols", f"{words(9)}… so...", f"{words(19)}… so...", "symbols > 0.1"),
        ("bullets", "• one\n" * 10, "• one\n" * 9 + "two\n", "bullets > 0.9"),
        ("bullets", "- one\n* two\n\n" * 5, "- one\n" * 9 + "\n\ntwo\n", "bullets > 0.9"),
        ("ellipses", "so…\n" * 4 + "so\n" * 9, "so...\n" * 3 + "so\n" * 7, "ellipses > 0.3"),
        ("letters", f"{words(79)} {words(21, '1.')}", f"{words(80)} {words(20, '1.')}",
         "letters < 0.8"),
        ("letters", "wörd слово 1 2", "wörd слово 語 Ünd 5", "letters < 0.8"),
        ("stop_words", "the cat, the dog", "“The cat, That dog", "stop_words < 2"),
        ("entropy", "Buy cheap watches! " * 200, "Buy cheap watches! " * 20, "entropy < 1.5"),
    ],
)  # fmt: skip
def test_each_of_the_published_limits_holds(setting, goes, stays, told):
    assert reason(goes, **{setting: True}) == told
    assert reason(stays, **{setting: True}) is None


def test_length_is_in_characters():
    assert reason("é" * 9, length=[10, 20]) == "length < 10"
    assert reason("é" * 21, length=[10, 20]) == "length > 20"
    assert reason("é" * 20, length=[10, 20]) is None


def test_own_limits_take_the_place_of_published_ones_and_false_leaves_one_out():
    assert reason(words(49), gopher=True) == "words < 50"
    assert reason(words(49), gopher=True, words=False, stop_words=0) is None
    assert reason(words(49), words=[10, 48.0]) == "words > 48"
    assert reason("# one two", symbols=0.5) is None
    assert reason("one", letters=True, stop_words=1) == "stop_words < 1"
    assert reason(words(3)) is None


ENGLISH = "It was a bright cold day in April, and the clocks were striking thirteen. " \
    "Winston Smith, his chin nuzzled into his breast in an effort to escape the vile wind, " \
    "slipped quickly through the glass doors of Victory Mansions."  # fmt: skip
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива " \
    "по-своему. Всё смешалось в доме Облонских. Жена узнала, что муж был в связи."  # fmt: skip
CHINESE = (
    "子曰：学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？"
    "有子曰：其为人也孝弟，而好犯上者，鲜矣；不好犯上，而好作乱者，未之有也。"
    "君子务本，本立而道生。孝弟也者，其为仁之本与！子曰：巧言令色，鲜矣仁！"
    "曾子曰：吾日三省吾身：为人谋而不忠乎？与朋友交而不信乎？传不习乎？"
    "子曰：道千乘之国，敬事而信，节用而爱人，使民以时。"
    "子曰：弟子入则孝，出则弟，谨而信，泛爱众而亲仁，行有余力，则以学文。"
)


@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, CHINESE])
def test_prose_of_any_script_lies_within_the_limits_of_entropy(text):
    assert reason(text * (499 // len(text.encode()) + 1), entropy=True) is None


def test_encoded_bytes_and_phrases_again_and_again_do_not():
    noise = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    assert reason(noise, entropy=True) == "entropy > 4.2"
    # Every byte follows every byte equally often: two bits each.
    assert bits_per_byte(Prose("aabacadbbcbdccdd" * 50 + "a")) == pytest.approx(2.0, abs=1e-6)
