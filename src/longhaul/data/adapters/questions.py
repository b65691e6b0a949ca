"""Questions with their best answers, as of Stack Exchange.

A record is a post (`PostTypeId`, `ParentId`, as in its dumps) or a question with its answers in a
list. Taken are the accepted answer and those with the best scores, three at most and of score 3 or
more: the limits with which The Pile took Stack Exchange (Gao et al. 2020, appendix C.8).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from longhaul.data.adapters.records import (
    Adapted,
    Fields,
    Record,
    first_of,
    in_buckets,
    number_of,
    text_of,
)
from longhaul.data.documents import Document
from longhaul.data.removed import Removed

MOST_ANSWERS = 3
LEAST_SCORE = 3
_ANSWERS = ("answers", "responses", "replies")
_QUESTION_TEXTS = ("question", "body", "Body", "question_body", "text")
_ANSWER_TEXTS = ("text", "body", "Body", "answer", "content")
_TITLES = ("title", "Title", "question_title")
_IDS = ("id", "Id", "qid", "question_id", "answer_id")
_PARENTS = ("parent_id", "ParentId", "parent")
_SCORES = ("score", "Score", "pm_score", "votes", "upvotes")
_ACCEPTED = ("accepted", "is_accepted", "selected")
_ACCEPTED_IDS = ("accepted_answer_id", "AcceptedAnswerId")
NOT_AMONG_BEST = "questions: answer not among the best"
UNANSWERED = "questions: no good answer"
WITHOUT_QUESTION = "questions: answer without its question"


@dataclass(frozen=True, slots=True)
class _Answer:
    name: str
    ident: str
    text: str
    score: float
    accepted: bool


def adapt_questions(records: Iterator[Record], removed: Removed) -> Iterator[Adapted]:
    """One document for each question that has a good answer: title, question, answers, the best
    first, parted by empty lines.
    """
    for bucket in in_buckets(records, _question_id):
        questions: dict[str, Record] = {}
        answers: dict[str, list[_Answer]] = {}
        for record in bucket:
            parent = _id(record.fields, _PARENTS)
            if parent:
                answers.setdefault(parent, []).append(_answer(record.fields, record.name))
            else:
                questions.setdefault(_question_id(record), record)
        for ident, record in questions.items():
            accepted = _id(record.fields, _ACCEPTED_IDS)
            given = [*_listed(record), *answers.pop(ident, [])]
            yield from _document(record, given, accepted, removed)
        for lost in answers.values():
            for answer in lost:
                removed.drop(WITHOUT_QUESTION, answer.name, answer.text)


def _id(fields: Fields, names: tuple[str, ...]) -> str:
    value = first_of(fields, *names)
    return "" if value is None else str(value)


def _question_id(record: Record) -> str:
    """The question that a record is or belongs to."""
    return _id(record.fields, _PARENTS) or _id(record.fields, _IDS) or record.name


def _listed(record: Record) -> Iterator[_Answer]:
    listed = first_of(record.fields, *_ANSWERS)
    for number, answer in enumerate(listed if isinstance(listed, list) else [], 1):
        if isinstance(answer, dict):
            yield _answer(answer, f"{record.name}/{number}")


def _answer(fields: Fields, name: str) -> _Answer:
    return _Answer(
        name,
        _id(fields, _IDS),
        text_of(fields, *_ANSWER_TEXTS),
        number_of(first_of(fields, *_SCORES)),
        first_of(fields, *_ACCEPTED) is True,
    )


def _document(
    record: Record, answers: list[_Answer], accepted: str, removed: Removed
) -> Iterator[Adapted]:
    question = [
        text_of(record.fields, *_TITLES),
        text_of(record.fields, record.text_field, *_QUESTION_TEXTS),
    ]

    def rank(answer: _Answer) -> tuple[bool, float]:
        return answer.accepted or (bool(accepted) and answer.ident == accepted), answer.score

    ranked = sorted((answer for answer in answers if answer.text), key=rank, reverse=True)
    good = [answer for answer in ranked if rank(answer)[0] or answer.score >= LEAST_SCORE]
    good = good[:MOST_ANSWERS]
    for answer in ranked:
        if answer not in good:
            removed.drop(NOT_AMONG_BEST, answer.name, answer.text)
    before = "\n\n".join(filter(None, [*question, *(answer.text for answer in answers)]))
    if not good or not any(question):
        removed.drop(UNANSWERED, record.name, "\n\n".join(filter(None, question)))
        return
    texts = [*question, *(answer.text for answer in good)]
    yield Adapted(before, Document("\n\n".join(filter(None, texts)), record.name))
