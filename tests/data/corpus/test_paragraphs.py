"""Boilerplate goes from all documents but the first, and nothing else changes."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.data.corpus.dedup import buckets, paragraphs
from longhaul.data.corpus.dedup.paragraphs import REASON, ParagraphStage, cuts_of, without
from longhaul.data.corpus.engine import Resources
from longhaul.data.corpus.parts import PartWriter, part_of, part_texts
from longhaul.data.documents import Document
from longhaul.data.removed import Removed

NOTICE = "All rights reserved by somebody.\nDo not copy this."
OTHER = "Subscribe to our weekly newsletter!"
PIECES = st.sampled_from(["\n", " ", "\t", "a" * 25, "\n\n", "é" * 30, "short"])
ONE = Resources(1, 4 << 30)


def stage(tmp_path, texts: list[str], most: int, a_part=4, resources=ONE, gone=()):
    """What is left, and the stage."""
    parts, names = [], []
    folder = tmp_path / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(0, len(texts), a_part):
        writer = PartWriter(folder, f"{number:06d}")
        for row, text in enumerate(texts[number : number + a_part]):
            writer.add(Document(text, f"d:{number + row}"), row)
        writer.flush(a_part)
        parts.append(part_of(folder / f"{number:06d}-000000.parquet"))
        names.append(f"letters.jsonl-{number:06d}")
    dropped = tmp_path / "duplicates-of-a-test" / "dropped" if gone else None
    if dropped is not None:
        dropped.mkdir(parents=True)
        for name in names:
            mine = gone if name.endswith("000000") else []
            buckets.save(dropped / f"{name}.npy", np.array(mine, np.int64))
    made = ParagraphStage(
        tuple(parts), tuple(names), most, dropped, tmp_path / "home", resources, lambda _: None
    )
    folder = made.run()
    left = [
        without(text, cuts_of(folder, name).get(row, []))
        for part, name in zip(parts, names, strict=True)
        for row, (_, text, _) in enumerate(part_texts(part.path))
    ]
    return left, made


def cut_by(made: ParagraphStage) -> Removed:
    whole = Removed()
    for name in made.names:
        whole.merge(made.removed(name))
    return whole


def letter(number: int, *more: str) -> str:
    own = f"Dear reader number {number}, this is about {number}."
    return "\n\n".join([own, *more, f"Yours sincerely, writer {number} of {number}"])


def test_a_paragraph_in_many_documents_goes_from_all_but_the_first(tmp_path):
    texts = [letter(n, NOTICE) if n in (1, 2, 6, 9) else letter(n) for n in range(10)]
    left, made = stage(tmp_path, texts, most=3)
    assert left == [letter(1, NOTICE) if n == 1 else letter(n) for n in range(10)]
    counted = cut_by(made).reasons[REASON]
    assert counted.documents == 3
    assert counted.examples[0] == ("d:2", NOTICE + "\n\n")


def test_a_paragraph_in_no_more_documents_than_that_stays(tmp_path):
    texts = [letter(n, NOTICE, NOTICE) if n in (1, 2, 6) else letter(n) for n in range(10)]
    left, made = stage(tmp_path, texts, most=3)
    assert left == texts
    assert not cut_by(made).reasons


def test_neither_case_nor_white_space_makes_another_paragraph(tmp_path):
    texts = [letter(0, NOTICE), letter(1, NOTICE.upper()), letter(2, NOTICE.replace("\n", "  "))]
    left, _ = stage(tmp_path, texts, most=2)
    assert left == [texts[0], letter(1), letter(2)]


def test_the_paragraph_after_it_keeps_its_indentation(tmp_path):
    texts = [letter(n, NOTICE, f"    indented {n}, and no less than others") for n in range(4)]
    left, _ = stage(tmp_path, texts, most=2)
    assert left[1] == letter(1, "    indented 1, and no less than others")


def test_short_paragraphs_stay(tmp_path):
    texts = [letter(n, "}", "Contents") for n in range(9)]
    assert stage(tmp_path, texts, most=2)[0] == texts


def test_documents_that_are_dropped_neither_count_nor_keep_a_paragraph(tmp_path):
    texts = [letter(n, NOTICE) for n in range(4)]
    left, _ = stage(tmp_path, texts, most=2, gone=(0,))
    assert left[1:] == [texts[1], letter(2), letter(3)]
    left, _ = stage(tmp_path / "more", texts, most=3, gone=(0,))
    assert left == texts


def backwards(work, jobs, _, light=False):
    return ((at, work(jobs[at])) for at in reversed(range(len(jobs))))


def test_nothing_depends_on_who_does_the_work(tmp_path, monkeypatch):
    by = random.Random(5)
    texts = [letter(n, *by.sample([NOTICE, OTHER, "x " * 40], by.randrange(3))) for n in range(40)]
    plainly, _ = stage(tmp_path / "one", texts, most=5)
    assert plainly != texts
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 100)
    monkeypatch.setattr(paragraphs, "run_jobs", backwards)
    monkeypatch.setattr(paragraphs, "_LEAST_BYTES", 1)
    assert stage(tmp_path / "two", texts, most=5, a_part=3)[0] == plainly


def test_what_is_made_is_not_made_again_and_what_is_not_is(tmp_path, monkeypatch):
    texts = [letter(n, NOTICE) for n in range(12)]
    left, made = stage(tmp_path, texts, most=3)
    for name in ("paragraphs.json", "letters.jsonl-000008-cuts.json"):
        (made.folder / name).unlink()
    done = []

    def watched(work, jobs, _, light=False):
        done.extend((work.__name__, job.name) for job in jobs if hasattr(job, "name"))
        return ((at, work(job)) for at, job in enumerate(jobs))

    monkeypatch.setattr(paragraphs, "run_jobs", watched)
    assert stage(tmp_path, texts, most=3)[0] == left
    assert done == [("_cut", "letters.jsonl-000008")]


@given(st.lists(PIECES, max_size=20).map("".join))
def test_paragraphs_lie_one_after_the_other_and_begin_with_their_own_text(text):
    at = 0
    for begin, end, _ in paragraphs.paragraphs(text):
        assert at <= begin < end <= len(text)
        assert begin == 0 or text[:begin].endswith("\n")
        assert len(text[begin:end].strip()) >= 20
        at = end


@pytest.mark.parametrize("stretches", [[], [(0, 2)], [(1, 3), (4, 6)], [(0, 6)]])
def test_cutting_puts_nothing_in(stretches):
    kept = set(range(6)) - {at for begin, end in stretches for at in range(begin, end)}
    assert without("abcdef", stretches) == "".join("abcdef"[at] for at in sorted(kept))
