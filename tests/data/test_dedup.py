from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.documents import Breakage, Document, is_held_out, text_digest
from longhaul.data.sources import Corpus
from longhaul.data.survey import kept_documents

TEXTS = st.lists(st.text(max_size=8), max_size=40)


class Texts(list):
    def documents(self, _):
        return (Document(text, "") for text in self)


@given(TEXTS)
def test_each_text_is_new_once(texts):
    corpus = Corpus("texts", 1.0, None, Texts(texts))
    breakage = Breakage("texts", 0.0)
    kept = [document.text for document, _, _ in kept_documents(corpus, breakage, set())]
    assert kept == list(dict.fromkeys(texts))
    assert breakage.num_duplicates == len(texts) - len(kept)


@given(st.binary(max_size=20), st.floats(0.001, 0.49), st.floats(0.001, 0.49))
def test_a_larger_fraction_only_adds_to_the_held_out_side(content, one, other):
    digest = text_digest(content)
    small, large = sorted((one, other))
    assert not is_held_out(digest, small) or is_held_out(digest, large)


def test_the_fraction_is_kept_and_the_hash_is_the_same_everywhere():
    held_out = sum(is_held_out(text_digest(str(n).encode()), 0.1) for n in range(10_000))
    assert 900 < held_out < 1100
    assert text_digest(b"longhaul").hex() == "0ed0cbb51db816ce2d4f3c03dfd3832b"
