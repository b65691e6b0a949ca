"""Near-duplicates: what is found follows the S-curve of banding, and what is dropped is similar."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.config.data import DedupSection
from longhaul.core.errors import RecipeError
from longhaul.data.corpus.dedup import buckets, duplicates
from longhaul.data.corpus.dedup.components import keep_one
from longhaul.data.corpus.dedup.duplicates import DedupStage
from longhaul.data.corpus.dedup.signatures import (
    band_keys,
    found,
    in_words,
    jaccard,
    rows_for,
    shingles,
    signatures,
)
from longhaul.data.corpus.engine import Resources
from longhaul.data.corpus.parts import PartWriter, part_of
from longhaul.data.documents import Document

VOCABULARY = [f"{'aeiou'[n % 5]}{n:x}" for n in range(5000)]
ONE, TWO = Resources(1, 4 << 30), Resources(2, 4 << 30)
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def edited(words: list[str], share: float, by: random.Random) -> list[str]:
    """Replaced, left out or put in, for this share of them."""
    made = []
    for word in words:
        kind = by.random() / share * 3 if share else 9
        if kind < 1:
            made.append(by.choice(VOCABULARY))
        elif kind < 2:
            made += [word, by.choice(VOCABULARY)]
        elif kind >= 3:
            made.append(word)
    return made


def planted(pairs: int, length: int = 200) -> tuple[list[str], list[str]]:
    """Texts, and copies of them with 1 to 30 % of their words edited, most with few."""
    by = random.Random(16)
    originals, copies = [], []
    for _ in range(pairs):
        words = by.choices(VOCABULARY, k=length)
        originals.append(" ".join(words))
        copies.append(" ".join(edited(words, 0.01 + 0.29 * by.random() ** 3, by)))
    return originals, copies


def reference(one: str, other: str) -> float:
    def of(text):
        words = text.lower().split()
        runs = {tuple(words[at : at + 5]) for at in range(len(words) - 4)}
        return runs or {tuple(words)}

    a, b = of(one), of(other)
    return len(a & b) / len(a | b)


PIECES = st.sampled_from(["a", "B", "ab", "é", "ba", " ", "\n\n"])
TEXT = st.lists(PIECES, max_size=30).map(" ".join)


@given(TEXT, TEXT)
def test_similarity_is_that_of_sets_of_five_words(one, other):
    assert jaccard(shingles(in_words(one)), shingles(in_words(other))) == reference(one, other)


@given(st.text(max_size=60))
def test_case_and_white_space_are_not_compared(text):
    other = in_words(text.replace(" ", " \n\t"))
    assert jaccard(shingles(in_words(text)), shingles(other)) == 1


@pytest.mark.parametrize("first", [0x4E00, 0x3041, 0x0E01, 0x1780, 0x1000])
def test_near_copies_in_scripts_without_spaces_are_found(tmp_path, first):
    by = random.Random(first)

    def written(size: int) -> str:
        return "".join(chr(first + by.randrange(40)) for _ in range(size))

    text, other = written(400), written(400)
    copy = text[:200] + written(4) + text[204:]
    same = jaccard(shingles(in_words(text)), shingles(in_words(copy)))
    assert 0.9 < same < 1
    assert jaccard(shingles(in_words(text)), shingles(in_words(other))) < 0.1
    assert stage(tmp_path, {"a": [text, other, copy]}, threshold=0.8) == {"a:2"}


def test_long_texts_are_compared_whole(monkeypatch):
    monkeypatch.setattr("longhaul.data.corpus.dedup.signatures._PIECE_BYTES", 50)
    [one], [other] = planted(1, 400)
    assert jaccard(shingles(one), shingles(other)) == pytest.approx(reference(one, other))


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_pairs_with_a_common_band_follow_the_s_curve(threshold):
    originals, copies = planted(3000)
    rows = rows_for(threshold)
    numbers = np.arange(3000, dtype=np.uint64)
    keys = [band_keys(signatures(texts), numbers, rows)[:, 0].reshape(-1, 3000)
            for texts in (originals, copies)]  # fmt: skip
    hit = np.any(keys[0] == keys[1], axis=0)
    similarity = np.array([reference(*pair) for pair in zip(originals, copies, strict=True)])
    expected = np.array([found(s, rows) for s in similarity])
    for low, high in ((0, 0.3), (0.3, 0.6), (0.6, 0.8), (0.8, 1)):
        some = (similarity >= low) & (similarity < high)
        assert some.sum() > 200
        assert hit[some].mean() == pytest.approx(expected[some].mean(), abs=0.03)


def stage(tmp_path, sources: dict[str, list[str]], workers=ONE, exact=True, known=(), **settings):
    parts, names = [], []
    for source, texts in sources.items():
        folder = tmp_path / source
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(0, len(texts), 40):
            writer = PartWriter(folder, f"{number:06d}")
            for row, text in enumerate(texts[number : number + 40]):
                writer.add(Document(text, f"{source}:{number + row}"), row)
            writer.flush(40)
            parts.append(part_of(folder / f"{number:06d}-000000.parquet"))
            names.append(f"{source}.jsonl.zst-{number:06d}")
    section = DedupSection.model_validate(settings)
    home = tmp_path / "home"
    made = DedupStage(
        tuple(parts), tuple(names), section, exact, known, home, workers, lambda _: None
    )
    rows = made.run()
    return {
        f"{name.partition('.')[0]}:{int(name.rpartition('-')[2]) + row}"
        for name in names
        for row in np.load(rows / f"{name}.npy").tolist()
    }


def test_similar_documents_go_and_others_stay(tmp_path):
    originals, copies = planted(400)
    dropped = stage(tmp_path, {"a": originals, "b": copies}, threshold=0.8)
    similarity = [reference(*pair) for pair in zip(originals, copies, strict=True)]
    alike = {f"b:{n}" for n, s in enumerate(similarity) if s >= 0.85}
    assert len(alike) > 100
    assert len(alike & dropped) / len(alike) >= 0.95
    assert dropped, "nothing was dropped"
    good = sum(similarity[int(name[2:])] >= 0.8 and name[0] == "b" for name in dropped)
    assert good / len(dropped) >= 0.97


def test_nothing_depends_on_who_does_the_work(tmp_path, monkeypatch):
    originals, copies = planted(120)
    sources = {"a": originals, "b": copies + originals[:7]}
    plainly = stage(tmp_path / "one", sources, threshold=0.7)
    assert plainly == stage(tmp_path / "two", sources, TWO, threshold=0.7)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 2_000)
    monkeypatch.setattr(duplicates, "run_jobs", backwards)
    assert plainly == stage(tmp_path / "three", sources, threshold=0.7)


def backwards(work, jobs, _, light=False):
    return ((at, work(jobs[at])) for at in reversed(range(len(jobs))))


def test_exact_copies_go_by_the_recipes_order(tmp_path):
    sources = {"a": ["x", "y", "x"], "b": ["y", "z", "z", "w"]}
    assert stage(tmp_path / "some", sources) == {"a:2", "b:0", "b:2"}
    assert stage(tmp_path / "none", sources, exact=False) == set()


def test_what_the_data_has_in_other_form_goes_altogether(tmp_path):
    from longhaul.data.documents import text_digest

    known = {text_digest(b"y"), text_digest(b"elsewhere")}
    assert stage(tmp_path, {"a": ["x", "y", "x"], "b": ["y"]}, known=known) == {"a:1", "a:2", "b:0"}


def test_the_longest_stays_where_that_is_asked_for(tmp_path):
    text = " ".join(VOCABULARY[:200])
    sources = {"a": [text, "something else"], "b": [text + " and more", text + " and less"]}
    assert stage(tmp_path / "first", sources, threshold=0.8) == {"b:0", "b:1"}
    longest = stage(tmp_path / "longest", sources, threshold=0.8, keep="longest")
    assert longest == {"a:0", "b:1"}


def test_a_chain_of_similar_documents_is_one_cluster():
    pairs = np.array([[1, 2], [2, 3], [5, 9]], np.uint64)
    clusters = keep_one(pairs, None, "first")
    assert clusters.documents.tolist() == [1, 2, 3, 5, 9]
    assert clusters.kept.tolist() == [1, 1, 1, 5, 5]
    assert clusters.dropped.tolist() == [2, 3, 9]


def test_a_template_of_a_thousand_documents_makes_no_million_pairs(tmp_path):
    words = VOCABULARY[:300]
    texts = [" ".join([*words[:n], f"number{n}", *words[n:]]) for n in range(200)]
    dropped = stage(tmp_path, {"a": texts}, threshold=0.8)
    assert len(dropped) == 199
    pairs = np.load(next((tmp_path / "home").glob("*/pairs.npy")))
    assert len(pairs) < 20 * 200


def test_a_machine_without_the_libraries_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert stage(tmp_path / "exact", {"a": ["x", "x"]}) == {"a:1"}
    with pytest.raises(RecipeError, match="need daft"):
        stage(tmp_path / "near", {"a": ["x", "x"]}, threshold=0.8)
