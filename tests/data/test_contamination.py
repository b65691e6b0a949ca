import json
import pickle
import random

import pytest

from longhaul.config.data import DataSection
from longhaul.data import contamination
from longhaul.data.contamination import (
    Contamination,
    EvaluationText,
    contamination_of,
    kept,
)
from longhaul.data.documents import Document
from longhaul.data.prepare import prepare
from longhaul.data.removed import Removed

WORDS = [f"word{n}" for n in range(2000)]


def prose(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def made(*texts: str, action="remove", max_share: float = 0.2) -> Contamination:
    held = EvaluationText()
    for number, text in enumerate(texts):
        held.add("quiz", Document(text, f"quiz.jsonl:{number + 1}"))
    return Contamination(held, action, max_share)


def share(text: str, *held: str) -> float:
    return made(*held).check(Document(text, "train:1")).share


def test_a_question_copied_into_a_long_page_is_found_whatever_its_case_and_punctuation() -> None:
    question = prose(1, 40)
    shouted = question.upper().replace(" ", ", ") + "!"
    page = f"{prose(2, 3000)} {shouted} {prose(3, 3000)}"
    overlap = made(prose(4, 40), question).check(Document(page, "page"))
    assert (overlap.share, overlap.with_document) == (1.0, "quiz: quiz.jsonl:2")


def test_twelve_words_in_a_row_are_chance_and_thirteen_are_not() -> None:
    question = prose(1, 60)
    words = question.split()
    assert share(f"{prose(2, 100)} {' '.join(words[5:17])} {prose(3, 100)}", question) == 0
    one = share(f"{prose(2, 100)} {' '.join(words[5:18])} {prose(3, 100)}", question)
    assert one == pytest.approx(1 / 48)


def test_short_questions_are_compared_by_eight_words_and_shorter_ones_are_counted() -> None:
    question = prose(1, 9)
    checked = made(question, "too short to tell")
    assert checked.text.too_short == 1
    page = Document(f"{prose(2, 50)} {question} {prose(3, 50)}", "page")
    assert checked.check(page).share == 1.0


def test_a_phrase_of_many_evaluation_documents_is_no_sign_of_any() -> None:
    licence = prose(9, 30)
    held = [f"{licence} {prose(n, 5)}" for n in range(20)]
    assert share(f"{licence} {prose(50, 500)}", *held) == 0
    assert share(f"{licence} {prose(50, 500)}", held[0], held[1]) > 0.5


def test_what_is_removed_is_counted_by_set_and_what_is_reported_is_kept() -> None:
    question = prose(1, 40)
    documents = [Document(prose(2, 200), "clean"), Document(f"so {question}", "dirty")]
    removed = Removed()
    assert [d.name for d in kept(documents, made(question), removed)] == ["clean"]
    reason = removed.reasons["contaminated by quiz"]
    assert reason.documents == 1
    assert reason.examples[0][0] == "dirty (100% of quiz: quiz.jsonl:1)"
    reported = Removed()
    assert len(list(kept(documents, made(question, action="report"), reported))) == 2
    assert list(reported.reasons) == ["kept: contaminated by quiz"]
    assert reported.documents == 0


def test_memory_is_bounded_and_a_copy_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "_MOST_NGRAMS", 1000)
    held = [prose(n, 400) for n in range(20)]
    checked = made(*held)
    assert checked.text.sampled in (8, 16)
    assert sum(len(hashes) for hashes, _ in checked.text._parts) <= 1000
    again = pickle.loads(pickle.dumps(checked))  # noqa: S301 (our own)
    assert again.check(Document(f"{prose(99, 100)} {held[7]}", "copy")).share == 1.0
    assert again.check(Document(prose(98, 3000), "other")).share == 0


def test_what_a_recipe_names_is_read_with_what_it_holds_out(tmp_path) -> None:
    (tmp_path / "quiz.txt").write_text(prose(1, 40))
    sources = ({"path": "text"},)
    asked = {"action": "report", "evaluation_sets": (str(tmp_path / "quiz.txt"),)}
    data = DataSection.model_validate({"sources": sources, "contamination": asked})
    held_out, said = [Document(prose(2, 40), "own:1"), Document("short", "own:2")], []
    checked = contamination_of(data, 1, tmp_path, said.append, held_out)
    assert checked is not None
    assert checked.text.names == ["held out: own:1", "quiz.txt: quiz.txt"]
    assert said == [
        "contamination: 2 documents to look for; 1 document of fewer than 8 words left out"
    ]
    assert (
        contamination_of(DataSection.model_validate({"sources": sources}), 1, tmp_path, said.append)
        is None
    )


@pytest.mark.parametrize("action", ["off", "report", "remove"])
def test_preparation_leaves_out_what_holds_an_evaluation_set(tmp_path, recipe_for, action) -> None:
    question = prose(1, 40)
    texts = [prose(n, 60) for n in range(2, 60)] + [f"{prose(99, 100)} {question}"]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "web.jsonl").write_text(lines)
    (tmp_path / "quiz.txt").write_text(question)
    asked = {"action": action, "evaluation_sets": (str(tmp_path / "quiz.txt"),)}
    recipe = recipe_for(tmp_path / "web.jsonl", contamination=asked)
    said: list[str] = []
    dataset = prepare(recipe, tmp_path / "prepared", said.append)
    source = json.loads((dataset.folder / "dataset.json").read_bytes())["sources"][0]
    assert source["documents"] == len(texts) - (action == "remove")
    assert any("contaminated by quiz.txt" in line for line in said) is (action != "off")
    (tmp_path / "quiz.txt").write_text(prose(3, 40))
    again = prepare(recipe, tmp_path / "prepared", said.append)
    assert (again.folder == dataset.folder) is (action == "off"), "the set has changed"
