"""Twelve faults, each planted in one of two clean sources, and what lint says of them."""

import random
from itertools import islice

import pytest

from longhaul.config.data import SourceSection
from longhaul.data.documents import Breakage, Document, text_digest
from longhaul.data.lint.facts import facts_of
from longhaul.data.lint.findings import findings, leakage_finding
from longhaul.data.lint.leakage import SplitLeakage
from longhaul.data.lint.summary import SourceSummary
from longhaul.data.sources import locate

_HELD_OUT = 0.1


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """200 files of Python's library, spread over it."""
    downloads = tmp_path_factory.mktemp("downloads")
    corpus = locate(SourceSection(path="python-stdlib"), 1, downloads, lambda _: None)
    plain = (
        document
        for document in corpus.documents(Breakage("python-stdlib", 1.0))
        # Tables of codes are near copies of each other, and held out they leak.
        if 500 < len(document.text) < 8_000 and not document.name.startswith("encodings/")
    )
    return list(islice(plain, 0, 600, 3))


_WORDS = (
    "harbour", "kettle", "ladder", "letter", "orchard", "river", "signal", "tower", "wagon",
    "bridge", "engine", "garden", "window", "winter", "market", "island", "shadow", "copper",
)  # fmt: skip
_LINKS = ("and", "the", "of", "in", "with", "for", "from", "under", "near", "because", "while")


def essays(seed: int, count: int) -> list[Document]:
    """Made-up prose with a vocabulary of its own, long enough that no run of words comes often."""
    chosen = random.Random(seed)
    made = [
        "".join(chosen.choice("bcdfglmnprstvz") + chosen.choice("aeiou") for _ in range(size))
        for size in (2, 2, 3, 3, 3, 4) * 300
    ]
    known = [*_WORDS, *made]
    documents = []
    for number in range(count):
        sentences = []
        for _ in range(chosen.randrange(15, 40)):
            words = [
                chosen.choice(_LINKS if chosen.random() < 0.3 else known)
                for _ in range(chosen.randrange(5, 18))
            ]
            sentences.append(f"{' '.join(words).capitalize()}.")
        lines = [" ".join(sentences[at : at + 3]) for at in range(0, len(sentences), 3)]
        documents.append(Document("\n".join(lines) + "\n", f"essays:{number + 1}"))
    return documents


@pytest.fixture(scope="module")
def clean(library):
    return {"library": library, "essays": essays(1, 200)}


def look(sources):
    """What lint finds: (kind, source)."""
    leakage = SplitLeakage(_HELD_OUT)
    summaries = []
    for name, documents in sources.items():
        summaries.append(SourceSummary(name, leakage))
        for document in documents:
            summaries[-1].see(document)
    facts = facts_of(summaries)
    found = findings(facts)
    found += leakage_finding("all sources", *leakage.leaks(frozenset(sources)))
    return found


def test_clean_sources_are_passed_in_silence(clean):
    assert look(clean) == []


def some(documents, share, damage):
    """A share of the documents, evenly spread, with the damage."""
    every = round(1 / share)
    return [
        Document(damage(document.text), document.name) if number % every == 0 else document
        for number, document in enumerate(documents)
    ]


def doubled(sources):
    sources["library"] = some(sources["library"], 0.05, lambda text: text.replace("\\", "\\\\"))


def leaked(sources):
    sources["essays"] = some(sources["essays"], 0.05, lambda text: text.replace("\n", "\\n"))


def entities(sources):
    sources["essays"] = some(
        sources["essays"], 0.05, lambda text: text.replace(". ", "&#46;&nbsp;")
    )


def trailing(sources):
    sources["essays"] = some(sources["essays"], 0.05, lambda text: text.replace("\n", "  \n"))


def mixed_ends(sources):
    sources["essays"] = some(
        sources["essays"], 0.05, lambda text: text.replace("\n", "\r\n", text.count("\n") // 2)
    )


def mojibake(sources):
    sources["essays"] = some(
        sources["essays"], 0.05,
        lambda text: text.replace("e ", "é ").encode().decode("cp1252", "replace"),
    )  # fmt: skip


def lost_characters(sources):
    sources["essays"] = some(sources["essays"], 0.05, lambda text: text.replace("ta", "t\ufffd"))


def template(sources):
    chosen = random.Random(3)
    for number in range(40):
        name, town = chosen.choice(_WORDS).capitalize(), chosen.choice(_WORDS).capitalize()
        text = (
            f"{name} Removals of {town} is open from {number % 9}:00. Call {number * 7919} today "
            f"for a free offer in {town}! All prices in {name} include tax. We move your home with "
            "care and on time, since 1994, and so does nobody else that you could ask.\n"
        )
        sources["essays"].append(Document(text, f"essays:ad-{number}"))


def near_empty(sources):
    for number in range(20):
        sources["essays"].insert(number * 9, Document(f"See also {number}.\n", f"essays:x{number}"))


def dominating(sources):
    whole = "".join(document.text for document in essays(4, 200))
    sources["essays"].append(Document(whole, "essays:all-in-one"))


def copied_paragraphs(sources):
    copied = essays(5, 2)
    stock = [line for document in copied for line in document.text.splitlines()]
    chosen = random.Random(6)
    sources["essays"] = some(
        sources["essays"], 0.2, lambda text: "\n".join(chosen.sample(stock, 12)) + "\n" + text[:200]
    )


def gibberish(sources):
    chosen = random.Random(7)
    sources["essays"] = some(
        sources["essays"], 0.25,
        lambda text: "".join(chosen.choices("bcdfghjklmnpqrstvwxz0123456789+/", k=len(text))),
    )  # fmt: skip


def split_leakage(sources):
    sources["essays"] += [
        Document(f"{document.text}\n", f"essays:again-{number}")
        for number, document in enumerate(sources["essays"])
        if number % 3 == 0
    ]


FAULTS = {
    doubled: ("doubled backslashes", "library"),
    leaked: ("escaped line ends", "essays"),
    entities: ("HTML entities", "essays"),
    trailing: ("white space behind lines", "essays"),
    mixed_ends: ("mixed line ends", "essays"),
    mojibake: ("text in a wrong encoding", "essays"),
    lost_characters: ("replacement characters", "essays"),
    template: ("repeated templates", "essays"),
    near_empty: ("near-empty documents", "essays"),
    dominating: ("one document dominates", "essays"),
    copied_paragraphs: ("too predictable", "essays"),
    gibberish: ("gibberish", "essays"),
    split_leakage: ("split leakage", "all sources"),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_its_source_named(clean, plant):
    sources = {name: list(documents) for name, documents in clean.items()}
    plant(sources)
    found = look(sources)
    assert FAULTS[plant] in {(finding.kind, finding.source) for finding in found}
    expected = {FAULTS[plant][1], "all sources"}
    assert {finding.source for finding in found} <= expected, "other sources are clean"


def test_doubled_backslashes_are_shown_with_where_they_are(clean):
    sources = {name: list(documents) for name, documents in clean.items()}
    doubled(sources)
    (finding,) = look(sources)
    assert "\\\\" in finding.examples[0], "an excerpt, and none of its backslashes is doubled"
    assert "\\\\\\" not in finding.examples[0]
    assert sum(finding.where) >= 3
    assert "the other sources have 0.00%" in finding.sentence
    assert finding.remedy


def test_the_same_document_is_on_the_side_that_the_data_set_puts_it(clean):
    """Equal texts cannot leak, however often they are there."""
    text = clean["essays"][0].text
    leakage = SplitLeakage(0.5)
    for number in range(50):
        leakage.see("a", str(number), text.encode(), text_digest(text.encode()))
    assert leakage.leaks(frozenset("a"))[1] == []
