import json
import struct

import numpy as np
import pytest

from longhaul.core.errors import DataError, RecipeError
from longhaul.data import token_files
from longhaul.data.dataset import open_dataset
from longhaul.data.prepare import prepare
from longhaul.data.shards import Shard
from longhaul.data.verification import Verification

NUMBERS = {"vocab_size": 100}
END = 99


def quiet(_: str) -> None:
    pass


def raw(*tokens: int) -> bytes:
    return np.array(tokens, "<u2").tobytes()


def documents_of(stream):
    return [document for path in stream.paths for document in Shard(path).documents()]


def stream(tokens_of) -> list[int]:
    return [token for _, part, _ in documents_of(tokens_of) for token in part.tolist()]


def llm_c(tokens, magic=20240520, version=1, dtype="<u2") -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + np.array(tokens, dtype).tobytes()


def megatron(*documents) -> tuple[bytes, bytes]:
    """`.bin` and `.idx` of int32 documents of one sequence each."""
    lengths = np.array([len(document) for document in documents], "<i4")
    pointers = ((np.cumsum(lengths) - lengths) * 4).astype("<i8")
    count = len(documents)
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, count, count + 1)
    borders = np.arange(count + 1, dtype="<i8")
    tokens = np.array([token for document in documents for token in document], "<i4")
    index += lengths.tobytes() + pointers.tobytes() + borders.tobytes()
    return tokens.tobytes(), index


@pytest.fixture
def prepared(tmp_path, recipe_for):
    def make(path, kind="numbers", tokenizer=None, source=None, say=quiet, **data):
        given = {"numbers": NUMBERS}.get(kind) if tokenizer is None else tokenizer
        recipe = recipe_for(path, kind, given, source, **data)
        return prepare(recipe, tmp_path / "prepared", say)

    return make


def test_tokens_are_copied_one_for_one_and_documents_end_where_they_say(tmp_path, prepared):
    tokens = [END, 1, 2, END, 3, END, 4, 4, 5, 6]
    (tmp_path / "a.bin").write_bytes(llm_c(tokens))
    lines: list[str] = []
    dataset = prepared(tmp_path / "a.bin", held_out={"fraction": 0.2}, say=lines.append)
    (source,) = dataset.sources
    assert stream(source.train) + stream(source.held_out) == tokens
    assert source.split == "tail"
    documents = [part.tolist() for _, part, _ in documents_of(source.train)]
    assert documents == [[END, 1, 2, END], [3, END], [4, 4]]
    assert [name for name, *_ in documents_of(source.train)] == ["a.bin:1", "a.bin:2", "a.bin:3"]
    assert any("10 tokens copied as they are (3 documents, text not known)" in x for x in lines)
    assert "bytes of text not known" in dataset.summary()


def test_the_same_tokens_in_any_format_are_the_same_data(tmp_path, prepared):
    documents = [[n % 90, (n * 7) % 90, END] for n in range(300)]
    flat = [token for document in documents for token in document]
    contents = {
        "nanogpt": raw(*flat),
        "llm.c": llm_c(flat, 20240801, 7, dtype="<u4"),
        "megatron": megatron(*documents)[0],
    }
    identities = set()
    for kind, content in contents.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "x.bin").write_bytes(content)
        if kind == "megatron":
            (folder / "x.idx").write_bytes(megatron(*documents)[1])
        dataset = prepared(folder, source={"format": kind, "name": "x"}, held_out={"fraction": 0.1})
        assert dataset.sources[0].split == "document"
        assert dataset.num_tokens == len(flat)
        Verification(dataset.folder).compare_all()
        assert open_dataset(dataset.folder).identity == dataset.identity
        identities.add(dataset.identity)
    assert len(identities) == 1


def test_files_for_validation_stay_for_validation(tmp_path, prepared):
    folder = tmp_path / "owt"
    folder.mkdir()
    (folder / "train.bin").write_bytes(raw(*range(50)))
    (folder / "val.bin").write_bytes(raw(7, 8, 9))
    (source,) = prepared(folder, source={"format": "nanogpt"}).sources
    assert (source.split, stream(source.held_out)) == ("file", [7, 8, 9])
    assert stream(source.train) == list(range(50))
    by_tail = prepared(
        folder, source={"format": "nanogpt"}, held_out={"by": "tail", "fraction": 0.1}
    )
    assert stream(by_tail.sources[0].held_out) == [47, 48, 49, 7, 8, 9]


@pytest.mark.parametrize("name", ["x", "x.idx", "x.bin"])
def test_megatron_is_found_by_either_file_or_their_common_prefix(tmp_path, prepared, name):
    content, index = megatron([1, 2, 3], [4, 5])
    (tmp_path / "x.bin").write_bytes(content)
    (tmp_path / "x.idx").write_bytes(index)
    dataset = prepared(tmp_path / name, source={"format": "megatron"}, held_out={"fraction": 0.3})
    assert stream(dataset.sources[0].train) + stream(dataset.sources[0].held_out) == [1, 2, 3, 4, 5]


def test_bytes_of_text_are_counted_where_the_tokenizer_is_known(tmp_path, prepared):
    text = "Ein Tännchen, immergrün. " * 20
    (tmp_path / "a.bin").write_bytes(raw(*text.encode()))
    dataset = prepared(tmp_path / "a.bin", "bytes", source={"format": "nanogpt"})
    assert dataset.num_bytes == len(text.encode())
    assert dataset.sources[0].held_out.num_bytes == dataset.sources[0].held_out.num_tokens
    unknown = prepared(
        tmp_path / "a.bin", "numbers", {"vocab_size": 256}, source={"format": "nanogpt"}
    )
    assert unknown.num_bytes == 0


def test_a_token_beyond_the_vocabulary_is_named_with_its_position(tmp_path, prepared):
    (tmp_path / "a.bin").write_bytes(llm_c([1, 2, 100, 3, 101]))
    with pytest.raises(DataError, match=r"token 100 at position 2 is beyond .* of 100"):
        prepared(tmp_path / "a.bin")
    content, index = megatron([1, 2], [3, -4])
    (tmp_path / "b.bin").write_bytes(content)
    (tmp_path / "b.idx").write_bytes(index)
    with pytest.raises(DataError, match="token -4 at position 3"):
        prepared(tmp_path / "b.bin")
    assert not list((tmp_path / "prepared").glob("*"))


def test_pieces_do_not_change_what_is_a_document(tmp_path, prepared, monkeypatch):
    tokens = [1, 2, 3, 4, 5, END, 6, END, END, 7, 8]
    (tmp_path / "a.bin").write_bytes(llm_c(tokens))
    for size in (1, 2, 3, 100):
        monkeypatch.setattr(token_files, "MAX_PIECE_TOKENS", size)
        # A document may be longer than a piece here, so that only the reading is in pieces.
        dataset = prepared(
            tmp_path / "a.bin", source={"name": f"s{size}"}, held_out={"fraction": 0.05}
        )
        documents = [part.tolist() for _, part, _ in documents_of(dataset.sources[0].train)]
        assert documents == [[1, 2, 3, 4, 5, END], [6, END], [END, 7]]


def test_tokens_and_text_are_mixed_when_the_tokenizer_fits_both(tmp_path, prepared):
    (tmp_path / "a.bin").write_bytes(llm_c([*b"written as bytes" * 20]))
    (tmp_path / "b.txt").write_text("written as text " * 20)
    dataset = prepared([tmp_path / "a.bin", tmp_path / "b.txt"], "bytes")
    assert [source.name for source in dataset.sources] == ["a.bin", "b.txt"]
    manifest = json.loads((dataset.folder / "dataset.json").read_bytes())
    assert [source["documents"] for source in manifest["sources"]] == [1, 1]


def test_a_tokenizer_that_cannot_be_the_right_one_is_refused_first(tmp_path, prepared):
    (tmp_path / "a.bin").write_bytes(llm_c([1, 2]))
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(
        RecipeError, match=r"made from text, but a\.bin is tokens already"
    ) as caught:
        prepared(tmp_path / "a.bin", "bpe")
    assert "numbers" in caught.value.remedy
    with pytest.raises(RecipeError, match=r"no tokens of text, but b\.txt is text"):
        prepared(tmp_path / "b.txt")
    (tmp_path / "meta.pkl").write_bytes(b"cos\nsystem\n")
    with pytest.raises(RecipeError, match="pickle and stays closed") as caught:
        prepared(tmp_path / "a.bin", "characters")
    assert "input.txt" in caught.value.remedy
    with pytest.raises(DataError, match="a pickle is a program"):
        prepared(tmp_path / "a.bin", "file", {"path": str(tmp_path / "meta.pkl")})


def test_a_folder_of_bin_files_asks_for_its_format(tmp_path, prepared):
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "train.bin").write_bytes(raw(1, 2))
    with pytest.raises(
        DataError, match=r"a folder of \.bin files and no text.*data.sources.format"
    ):
        prepared(folder)
    with pytest.raises(DataError, match="unknown format") as caught:
        prepared(folder / "train.bin")
    assert '"nanogpt"' in caught.value.remedy


def sides_of(dataset) -> tuple[set[bytes], set[bytes]]:
    """Documents to train on and held out, over all sources, without their end-of-text."""

    def all_of(side):
        streams = [getattr(source, side) for source in dataset.sources]
        return {bytes(t[t != 256].astype("u1")) for s in streams for _, t, _ in documents_of(s)}

    return all_of("train"), all_of("held_out")


@pytest.mark.parametrize("dropped", [True, False])
def test_a_document_as_text_and_as_tokens_lies_on_one_side_of_the_split(
    tmp_path, prepared, dropped
):
    documents = [f"document {n} {'x' * (n % 7)}" for n in range(400)]
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": d}) + "\n" for d in [*documents, "text alone"]))
    tokens = [token for d in documents[:300] for token in [*d.encode(), 256]]
    (tmp_path / "tokens.bin").write_bytes(llm_c(tokens))
    dataset = prepared(
        [text, tmp_path / "tokens.bin"], "bytes", drop_exact_duplicates=dropped,
        held_out={"fraction": 0.1, "by": "document"},
    )  # fmt: skip
    train, held_out = sides_of(dataset)
    assert train | held_out == {d.encode() for d in [*documents, "text alone"]}
    assert len(held_out) > 20
    assert not train & held_out
    manifest = json.loads((dataset.folder / "dataset.json").read_bytes())
    counts = [(s["documents"], s["duplicates_dropped"]) for s in manifest["sources"]]
    # Tokens are copied as they are, so that the text is what is left out.
    assert counts == ([(101, 300), (300, 0)] if dropped else [(401, 0), (300, 0)])


def test_what_a_file_for_validation_holds_is_held_out_of_every_source(tmp_path, prepared):
    documents = [f"document {n}" for n in range(300)]
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, files in ((first, {"train": documents[:100], "val": documents[100:110]}),
                          (second, {"all": documents})):  # fmt: skip
        folder.mkdir()
        for name, held in files.items():
            tokens = [token for d in held for token in [*d.encode(), 256]]
            (folder / f"{name}.bin").write_bytes(llm_c(tokens))
    dataset = prepared([first, second], "bytes", source={"format": "llm.c"})
    train, held_out = sides_of(dataset)
    assert {d.encode() for d in documents[100:110]} <= held_out
    assert not {d.encode() for d in documents[100:110]} & train
    assert [source.split for source in dataset.sources] == ["file", "document"]
