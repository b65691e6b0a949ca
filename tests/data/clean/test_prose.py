import pytest

from longhaul.config.corpus import CleanSection
from longhaul.data.adapters.proceedings import adapt_proceedings
from longhaul.data.adapters.records import Record
from longhaul.data.clean.masks import mask_addresses, mask_secrets
from longhaul.data.clean.measures import num_characters
from longhaul.data.clean.normalise import normalise
from longhaul.data.clean.prose import MOST_JUDGED, Prose
from longhaul.data.removed import Removed


def test_a_very_long_text_is_judged_by_its_beginning_and_its_whole_length():
    prose = Prose("word " * MOST_JUDGED)
    assert len(prose.words) == MOST_JUDGED // 5 + 1
    assert num_characters(prose) == 5 * MOST_JUDGED


@pytest.mark.parametrize(
    "piece", ["a", " ", "sk-", "eyJ", "@", "a@", "1.", "\x1b]", "token='", "\t\n", "x-\n", "ghp_"]
)
def test_no_text_costs_the_square_of_its_length(piece):
    # A quarter of a million pieces; the square would take hours, and the test's time is limited.
    text = piece * 250_000
    normalise(text, CleanSection(whitespace=True, characters=True, unicode="NFC"))
    mask_addresses(mask_secrets(text)[0])
    list(adapt_proceedings(iter([Record("x", {"text": text}, "text")]), Removed()))
