"""What was dropped is told: from which source, for which document, by which pairs."""

import json
import random

import pytest

from longhaul.config.data import DedupSection
from longhaul.core.errors import UsageError
from longhaul.data.corpus.dedup.duplicates import DedupStage
from longhaul.data.corpus.dedup.explain import explain, way
from longhaul.data.corpus.dedup.findings import REPORT, Findings
from longhaul.data.corpus.engine import Resources
from longhaul.data.corpus.parts import PartWriter, part_of
from longhaul.data.documents import Document, text_digest

BY = random.Random(3)
WORDS = [f"word{n}" for n in range(2000)]


def essay() -> list[str]:
    return BY.sample(WORDS, 150)


def without(words: list[str], *gone: int) -> list[str]:
    return [word for at, word in enumerate(words) if at not in gone]


def found(tmp_path, sources: dict[str, dict[str, str]], known=()) -> Findings:
    parts, names = [], []
    for source, texts in sources.items():
        folder = tmp_path / source
        folder.mkdir()
        writer = PartWriter(folder, "unit")
        for name, text in texts.items():
            writer.add(Document(text, name), 1)
        writer.flush(len(texts))
        parts.append(part_of(folder / "unit-000000.parquet"))
        names.append(source)
    stage = DedupStage(
        tuple(parts), tuple(names), DedupSection(threshold=0.8), True, known, tmp_path / "home",
        Resources(1, 4 << 30), lambda _: None,
    )  # fmt: skip
    stage.run()
    return Findings(stage.folder, tuple(parts), tuple(names))


@pytest.fixture
def library(tmp_path):
    """One text in three forms, each like the next; a copy of the last; two copies; and others."""
    first = essay()
    second, third = without(first, 10), without(first, 10, 60, 110)
    texts = [" ".join(words) for words in (first, second, third)]
    plain = [" ".join(essay()) for _ in range(4)]
    sources = {
        "wiki": {"w:1": texts[0], "w:2": plain[0], "w:3": plain[1]},
        "mail": {"m:1": texts[1], "m:2": texts[2], "m:3": plain[0], "m:4": plain[2]},
        "code": {"c:1": texts[2], "c:2": plain[3]},
    }
    return found(tmp_path, sources)


def test_duplicates_are_counted_by_their_source_and_that_of_who_stays(library):
    assert library.by_source() == [
        {"dropped": "code", "kept": "wiki", "exact": 1, "near": 0},
        {"dropped": "mail", "kept": "wiki", "exact": 1, "near": 2},
    ]
    assert library.sizes() == {2: 1, 4: 1}


def test_the_report_shows_the_largest_cluster_side_by_side_and_lies_in_the_folder(library):
    report = library.write_report()
    assert json.loads((library.folder / REPORT).read_text()) == report
    assert (report["documents"], report["exact"], report["near"], report["clusters"]) == (
        9,
        2,
        2,
        2,
    )
    largest = report["largest"][0]
    assert largest["size"] == 4
    assert [member["name"] for member in largest["members"]] == ["w:1", "m:1", "m:2", "c:1"]
    assert largest["members"][0]["similarity"] == 1
    assert 0.8 < largest["members"][2]["similarity"] < largest["members"][1]["similarity"] < 1
    assert largest["members"][0]["excerpt"].startswith("word")


def test_a_dropped_document_is_explained_by_its_pairs_and_what_differs(library):
    lines = "\n".join(explain(library, "m:1"))
    assert "m:1 (mail): dropped; w:1 (wiki) stays, in place of 3 documents" in lines
    assert "m:1 (mail) is like w:1 (wiki): Jaccard 0.9" in lines
    assert "\n    -word" in lines
    assert "\n    +word" in lines


def test_a_copy_of_a_dropped_document_is_explained_through_it(library):
    lines = list(explain(library, "c:1"))
    assert lines[0] == "c:1 (code): dropped; w:1 (wiki) stays, in place of 3 documents"
    assert lines[1] == "  it is an exact copy of m:2 (mail)"
    assert lines[2].startswith("  m:2 (mail) is like ")


def test_who_stays_is_explained_too(library):
    assert next(explain(library, "w:1")) == "w:1 (wiki): stays, in place of 3 documents"
    [line] = explain(library, "w:3")
    assert line == "w:3 (wiki): stays; no other document is like it"
    with pytest.raises(UsageError, match="w:9: no document"):
        list(explain(library, "w:9"))


def test_what_comes_as_tokens_too_is_told_as_such(tmp_path):
    text = " ".join(essay())
    library = found(tmp_path, {"wiki": {"w:1": text}}, {text_digest(text.encode())})
    assert library.by_source() == [{"dropped": "wiki", "kept": "tokens", "exact": 1, "near": 0}]
    assert "a document that comes as tokens" in next(explain(library, "w:1"))
    assert library.write_report()["largest"][0]["size"] == 2


def test_nothing_found_is_a_report_of_nothing(tmp_path):
    library = found(tmp_path, {"wiki": {"w:1": " ".join(essay()), "w:2": " ".join(essay())}})
    report = library.write_report()
    assert (report["exact"], report["near"], report["largest"]) == (0, 0, [])


def test_the_shortest_chain_of_pairs_is_told():
    import numpy as np

    pairs = np.array([[1, 2], [2, 3], [3, 4], [1, 5], [5, 4]], np.uint64)
    assert way(pairs, 4, 1) == [4, 5, 1]
    assert way(pairs, 7, 1) == []
