import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.data.dataset import TokenStream
from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.tokenize import split_tail, text_bytes
from longhaul.data.tokenizing import ByteTokenizer, CharacterTokenizer

TEXTS = st.lists(st.text(alphabet="aé漢", min_size=1, max_size=9), min_size=1, max_size=9)


def split(folder, tokenizer, texts, fraction):
    writers = [
        ShardWriter(folder, name, tokenizer.vocab_size, "c" * 64, max_tokens=5)
        for name in ("whole", "train", "held-out")
    ]
    for number, text in enumerate(texts):
        end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
        ids = np.array([*tokenizer.encode(text), *end])
        writers[0].add(f"d{number}", ids, len(text.encode()))
    paths = writers[0].close()
    everything = [t for path in paths for t in Shard(path).tokens.tolist()]
    split_tail(paths, fraction, tokenizer, writers[1], writers[2])
    assert not any(path.exists() for path in paths)
    return everything, *(TokenStream([Shard(p) for p in w.close()]) for w in writers[1:])


def documents_of(stream):
    return [document for path in stream.paths for document in Shard(path).documents()]


def tokens(stream):
    return [t for _, part, _ in documents_of(stream) for t in part.tolist()]


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.floats(0.01, 0.49), st.booleans())
def test_the_tail_is_exact_to_the_token_and_bytes_add_up(tmp_path_factory, texts, fraction, end):
    tokenizer = CharacterTokenizer("aé漢", end)
    everything, train, held_out = split(tmp_path_factory.mktemp("s"), tokenizer, texts, fraction)
    cut = int(len(everything) * (1 - fraction))
    assert tokens(train) == everything[:cut]
    assert tokens(held_out) == everything[cut:]
    assert train.num_bytes == text_bytes(tokenizer, np.array(everything[:cut]))
    assert held_out.num_bytes == text_bytes(tokenizer, np.array(everything[cut:]))
    assert train.num_bytes + held_out.num_bytes == sum(len(text.encode()) for text in texts)


def test_the_document_that_is_cut_keeps_its_name_on_both_sides(tmp_path):
    _, train, held_out = split(tmp_path, ByteTokenizer(False), ["a" * 10], 0.3)
    assert [name for name, *_ in documents_of(train)] == ["d0"]
    assert [(name, size) for name, _, size in documents_of(held_out)] == [("d0", 3)]
