import threading

import numpy as np
import pytest

from longhaul.core.errors import DataError
from longhaul.data import encoding
from longhaul.data.documents import text_digest
from longhaul.data.encoding import tokenized
from longhaul.data.sources import synthetic_documents
from longhaul.data.subwords import SubwordTokenizer, train_bpe
from longhaul.data.tokenizing import ByteTokenizer

DOCUMENTS = list(synthetic_documents(3))[:400]
BPE = train_bpe([document.text for document in DOCUMENTS[:50]], 500, end_of_text=True)


def kept(documents=DOCUMENTS):
    for document in documents:
        content = document.text.encode()
        yield document, len(content), text_digest(content)


def quiet(_):
    pass


def fresh() -> SubwordTokenizer:
    return SubwordTokenizer(BPE.content(), True, "x")


@pytest.mark.parametrize("cores", [1, 3])
def test_documents_come_in_order_with_the_tokens_they_have_alone(monkeypatch, cores):
    monkeypatch.setattr(encoding, "_usable_cores", lambda: cores)
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 20_000)
    found = list(tokenized(kept(), fresh(), quiet))
    assert [each[0] for each, _ in found] == DOCUMENTS
    for (document, _, _), tokens in found:
        assert tokens.tolist() == [*BPE.encode(document.text).tolist(), BPE.end_of_text]


def test_every_document_has_begin_and_end_of_text_where_they_are_used():
    tokenizer = ByteTokenizer(end_of_text=True)
    tokenizer.begin_of_text = 7
    for (document, _, _), tokens in tokenized(kept(), tokenizer, quiet):
        assert tokens.tolist() == [7, *document.text.encode(), 256]


def test_the_next_are_read_while_one_is_encoded(monkeypatch):
    monkeypatch.setattr(encoding, "_usable_cores", lambda: 1)
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 20_000)
    further = threading.Event()

    def documents():
        for number, each in enumerate(kept()):
            if number == 30:
                further.set()
            yield each

    class Waiting(ByteTokenizer):
        def encode_batch(self, texts):
            assert further.wait(30), "nothing was read while this was encoded"
            return super().encode_batch(texts)

    assert len(list(tokenized(documents(), Waiting(False), quiet))) == len(DOCUMENTS)


def test_what_fails_while_reading_or_encoding_is_raised_and_ends_the_threads():
    def documents():
        yield from kept()
        raise DataError("broken", "repair it")

    class Failing(ByteTokenizer):
        def encode_batch(self, texts):
            raise DataError("no token", "another")

    before = threading.active_count()
    with pytest.raises(DataError, match="broken"):
        list(tokenized(documents(), fresh(), quiet))
    with pytest.raises(DataError, match="no token"):
        list(tokenized(kept(), Failing(False), quiet))
    abandoned = tokenized(kept(), fresh(), quiet)
    next(abandoned)
    abandoned.close()
    assert threading.active_count() == before


def test_a_difference_on_a_sample_of_the_corpus_is_said_and_tokenizers_used(monkeypatch):
    from longhaul.data.byte_pairs import BytePairEncoder

    encode = BytePairEncoder.encode

    def wrong_about_towers(self, text):
        tokens = encode(self, text)
        return tokens[::-1].copy() if "tower" in text else tokens

    monkeypatch.setattr(BytePairEncoder, "encode", wrong_about_towers)
    said = []
    found = list(tokenized(kept(), fresh(), said.append))
    assert len(said) == 1
    assert "not by tiktoken" in said[0]
    assert np.array_equal(found[0][1][:-1], BPE.encode(DOCUMENTS[0].text))


def test_a_single_thread_where_others_use_the_cores(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert encoding._usable_cores() == 1
