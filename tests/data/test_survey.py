import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.data import HeldOutSection
from longhaul.data.survey import SourceSurvey, TextSample


def survey(documents, held_out):
    return SourceSurvey(documents, documents * 100, held_out, 0, "")


@pytest.mark.parametrize(
    ("documents", "held_out", "by", "expected"),
    [
        (200, 2, "auto", "document"),
        (199, 2, "auto", "tail"),
        (200, 0, "auto", "tail"),  # by document, nothing would be held out
        (10, 0, "document", "document"),
        (1000, 9, "tail", "tail"),
    ],
)
def test_auto_splits_by_document_where_there_are_enough(documents, held_out, by, expected):
    assert survey(documents, held_out).split(HeldOutSection(by=by)) == expected


TEXTS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=20), min_size=1, max_size=30)


@settings(deadline=None)
@given(TEXTS, st.integers(20, 200))
def test_a_sample_fits_and_takes_everything_that_fits(texts, limit):
    sample = TextSample(limit)
    for text in texts:
        sample.show(text)
    taken = sample.texts()
    assert sample.num_bytes == sum(map(len, taken)) <= limit
    if sum(map(len, texts)) <= limit:
        assert taken == texts
    else:
        assert sample.num_bytes > limit - 20 or len(taken) < len(texts)


@settings(deadline=None)
@given(TEXTS, st.randoms())
def test_which_texts_are_taken_does_not_depend_on_their_order(texts, random):
    texts = list(dict.fromkeys(texts))
    shuffled = random.sample(texts, len(texts))
    samples = []
    for order in (texts, shuffled):
        sample = TextSample(60)
        for text in order:
            sample.show(text)
        samples.append(sorted(sample.texts()))
    assert samples[0] == samples[1]


def test_long_texts_do_not_make_room_for_texts_that_would_not_be_taken_otherwise():
    texts = [f"{n}" * (1 + n % 50) for n in range(300)]
    samples = []
    for order in (texts, texts[::-1]):
        sample = TextSample(1000)
        for text in order:
            sample.show(text)
        samples.append(sorted(sample.texts()))
    assert samples[0] == samples[1]


def test_a_sample_is_spread_over_one_big_text():
    sample = TextSample(1 << 20)
    sample.show("".join(f"{n:07}\n" for n in range(1 << 19)))
    lines = [int(piece[:7]) for piece in sample.texts()]
    assert len(lines) == 16
    assert lines == sorted(lines)
    assert min(lines) < 150_000 < 350_000 < max(lines)
