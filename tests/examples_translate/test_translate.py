"""The translator of examples/translate on pairs made here: nothing is fetched, nothing trained."""

import itertools
import math
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.translate import judge as judging
from examples.translate.alignment import by_model_2, grown
from examples.translate.catalogues import catalogues, messages, own_pairs, pair_of
from examples.translate.decoder import FEATURES, Decoder
from examples.translate.features import Candidates, features
from examples.translate.hybrid import Hybrid, chosen, repaired, sentences
from examples.translate.measure import by_group, p_value, quality, survival
from examples.translate.neural import Neural, Written
from examples.translate.ngram import BEGIN, END, UNKNOWN, LanguageModel
from examples.translate.page import page
from examples.translate.phrases import Option, PhraseTable, extracted, phrase_table
from examples.translate.splits import split
from examples.translate.statistical import Statistical, load, make
from examples.translate.text import joined, marks, masked, masked_pair, plain, unmasked, words
from examples.translate.tuning import sentence_bleu, tuned

from longhaul import DataError, UsageError

WORDS = {"the": "das", "house": "Haus", "small": "kleine", "green": "grüne", "book": "Buch",
         "tree": "Holz", "is": "ist", "old": "alt", "new": "neu", "here": "hier"}  # fmt: skip


def _tiny(number: int = 300, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    sources = [" ".join(draw.sample(sorted(WORDS), draw.randint(2, 5))) for _ in range(number)]
    return [(s, " ".join(WORDS[w] for w in s.split())) for s in sources]


@pytest.mark.parametrize(
    "text",
    ["Open ⟦1⟧: (again), it's 5% done!", "«a» b-c…", "px⟦1⟧⟦2⟧ x", "..a", "", "漢字 und ñ"],
)
def test_words_are_joined_to_the_very_text(text: str) -> None:
    assert joined(words(text)) == text


@pytest.mark.parametrize("text", ["%s of %(n)d <b>x</b> {name} %1$s &amp; https://a.b/c", "none"])
def test_placeholders_come_back_to_the_letter(text: str) -> None:
    marked, held = masked(text)
    assert unmasked(marked, held) == text
    assert len(held) == sum(marks(marked).values())


def test_a_pair_has_the_same_marks_in_any_order_or_is_none() -> None:
    assert masked_pair("{a} of {b}", "von {b}: {a}") == ("⟦1⟧ of ⟦2⟧", "von ⟦2⟧: ⟦1⟧")
    assert masked_pair("{a} of {b}", "von {b}") is None


def test_signs_of_keys_go_and_names_and_entities_stay() -> None:
    assert plain("_File ~Edit Co_") == "File Edit Co_"
    assert plain("Co_pier") == "Copier"
    assert plain("a &amp; b &Open") == "a &amp; b Open"


def test_catalogues_of_a_wheel_are_read(tmp_path: Path) -> None:
    pytest.importorskip("polib")
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n' \
        'msgid "House"\nmsgstr "Haus"\n\n#, fuzzy\nmsgid "Tree"\nmsgstr "Baum"\n'  # fmt: skip
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/locale/de/LC_MESSAGES/a.po", text)
        archive.writestr("a/locale/fr/LC_MESSAGES/a.po", text)
    found = [pair for _, content in catalogues(wheel, "de") for pair in messages(content)]
    assert found == [("House", "Haus")]


def test_own_pairs_are_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    good.write_text("The house\tDas Haus\n\n")
    bad.write_text('{"source": "a"}\n')
    assert [p.target for p in own_pairs(good)] == ["Das Haus"]
    with pytest.raises(DataError, match=r"b\.jsonl:1"):
        list(own_pairs(bad))
    with pytest.raises(UsageError, match=r"neither"):
        list(own_pairs(tmp_path / "c.txt"))


def test_no_sentence_is_in_two_parts() -> None:
    long = "when the window is closed all of its files are saved in the folder of the user"
    train = [
        pair_of("The house", "Das Haus", "a"),
        pair_of(long, "Lang eins zwei drei vier fünf", "a"),
    ]
    test = [
        pair_of("the HOUSE!", "Ein anderes", "b"),
        pair_of("A home", "das Haus", "b"),
        pair_of(long + " now", "Etwas ganz anderes als das andere", "b"),
        pair_of("A green tree", "Ein grüner Baum", "b"),
    ]
    made = split({"train": train, "test": test})  # type: ignore[dict-item]
    assert [pair.source for pair in made.test] == ["A green tree"]
    assert (made.same, made.similar) == (2, 1)


def test_model_2_finds_which_word_is_which() -> None:
    pairs = [(s.split(), t.split()) for s, t in _tiny(120)]
    found = by_model_2([s for s, _ in pairs], [t for _, t in pairs], 5)
    right = sum(
        (n, n) in links for (s, _), links in zip(pairs, found, strict=True) for n in range(len(s))
    )
    assert right / sum(len(s) for s, _ in pairs) > 0.95


def test_growing_keeps_both_and_adds_neighbours() -> None:
    both, more = frozenset({(0, 0), (2, 2)}), frozenset({(0, 0), (2, 2), (1, 1), (5, 0)})
    assert grown(both, more) == {(0, 0), (1, 1), (2, 2), (5, 0)} - {(5, 0)}


def test_phrases_are_those_of_the_worked_example() -> None:
    """Worked out by hand: two words swap, and one target word has no link."""
    source, target = ["a", "b", "c"], ["B", "A", "x", "C"]
    links = frozenset({(0, 1), (1, 0), (2, 3)})
    found = {
        (" ".join(source[b:e]), " ".join(target[low:high]))
        for b, e, low, high in extracted(source, target, links)
    }
    assert found == {
        ("a", "A"), ("a", "A x"), ("b", "B"), ("c", "C"), ("c", "x C"), ("a b", "B A"),
        ("a b", "B A x"), ("a b c", "B A x C"),
    }  # fmt: skip


def test_scores_of_a_phrase_are_its_shares() -> None:
    table = phrase_table([["a"]] * 3, [["A"], ["A"], ["B"]], [frozenset({(0, 0)})] * 3)
    by_words = {option.words: option for option in table.options["a",]}
    assert by_words["A",].scores == pytest.approx((math.log(2 / 3), math.log(2 / 3), 0, 0))


def test_no_phrase_loses_a_placeholder() -> None:
    table = phrase_table([["⟦1⟧", "a"]], [["A", "⟦1⟧"]], [frozenset({(0, 0), (1, 1)})])
    assert all(
        marks(" ".join(one)) == marks(" ".join(option.words))
        for one, options in table.options.items()
        for option in options
    )


@pytest.mark.parametrize("context", [(BEGIN,), ("das", "kleine"), ("never", "seen")])
def test_probabilities_of_the_next_word_add_up_to_one(context: tuple[str, ...]) -> None:
    model = LanguageModel([t.split() for _, t in _tiny(50)], 3)
    total = sum(
        math.exp(model.log_probability(context, w)) for w in [*WORDS.values(), END, UNKNOWN]
    )
    assert total == pytest.approx(1)


def _random_decoder(seed: int, **settings: int) -> Decoder:
    draw = random.Random(seed)
    options: dict[tuple[str, ...], tuple[Option, ...]] = {}
    for size in (1, 2):
        for phrase in itertools.permutations("abcd", size):
            if size == 1 or draw.random() < 0.4:
                options[phrase] = tuple(
                    Option(tuple(draw.choices("WXYZ", k=draw.randint(1, 2))),
                           tuple(-3 * draw.random() for _ in range(4)), 1)  # type: ignore[arg-type]
                    for _ in range(2)
                )  # fmt: skip
    model = LanguageModel([draw.choices("WXYZ", k=4) for _ in range(30)], 3)
    return Decoder(PhraseTable(options, {}), model, **settings)


def _exhaustive(decoder: Decoder, source: list[str]) -> float:
    """Best score over every cut into phrases, every order and every option."""
    best = float("-inf")
    for cuts in itertools.product([0, 1], repeat=len(source) - 1):
        places = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), len(source)]
        spans = list(itertools.pairwise(places))
        if any(tuple(source[b:e]) not in decoder.table.options for b, e in spans):
            continue
        for order in itertools.permutations(spans):
            choices = [decoder.table.options[tuple(source[b:e])] for b, e in order]
            for chosen_options in itertools.product(*choices):
                text = [word for option in chosen_options for word in option.words]
                leap = -sum(abs(b - end) for (b, _), end in zip(order, [0, *(e for _, e in order)]))  # noqa: B905
                figures = [
                    *(sum(o.scores[n] for o in chosen_options) for n in range(4)),
                    decoder.language_model.score(text), len(text), len(order), leap, 0.0,
                ]  # fmt: skip
                best = max(best, sum(w * f for w, f in zip(decoder.weights, figures, strict=True)))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_what_exhaustive_search_finds(seed: int) -> None:
    decoder = _random_decoder(seed, beam=10**6, reordering=10)
    source = list("abcd")
    assert decoder.translate(source).score == pytest.approx(_exhaustive(decoder, source))


def test_a_score_is_its_figures_times_the_weights() -> None:
    decoder = _random_decoder(7)
    for one in decoder.best(list("abca?"), 10):
        expected = sum(w * f for w, f in zip(decoder.weights, one.figures, strict=True))
        assert one.score == pytest.approx(expected)
        assert "?" in one.words, "an unknown word passes through"
        assert one.figures[FEATURES.index("unknown")] == 1
    assert decoder.best([], 1)[0].words == ()


def _statistical(tmp_path: Path) -> Statistical:
    pairs = [pair_of(s, t, "tiny") for s, t in _tiny()]
    kept = [pair for pair in pairs if pair is not None]
    return make(kept, kept[:10], tmp_path, 1, say=lambda _: None)


def test_the_tiny_language_is_learned_and_kept(tmp_path: Path) -> None:
    made = _statistical(tmp_path)
    unseen = [pair for pair in _tiny(60, seed=9) if pair not in _tiny()]
    for system in (made, load(tmp_path)):
        hits = [
            sorted(system.decoder.translate(s.split()).words) == sorted(t.split())
            for s, t in unseen
        ]
        assert sum(hits) / len(hits) > 0.9
    with pytest.raises(UsageError, match=r"make translate"):
        load(tmp_path / "nothing")


def test_tuning_is_never_worse_than_the_first_weights() -> None:
    decoder = _random_decoder(3)
    sources = [list(p) for p in itertools.permutations("abcd", 3)]
    targets = [["W", "X", "Y"]] * len(sources)

    def mean(one: Decoder) -> float:
        return sum(
            sentence_bleu(one.translate(s).words, t) for s, t in zip(sources, targets, strict=True)
        )

    assert mean(tuned(decoder, sources, targets, 2)) >= mean(decoder)


class _Letters:
    """A token for each of a few letters, `⟶` and the end."""

    end_of_text = 4

    def encode(self, text: str) -> np.ndarray:
        return np.array(["abc⟶".index(letter) for letter in text], dtype=np.int64)

    def decode(self, tokens: list[int]) -> str:
        return "".join("abc⟶"[token] for token in tokens)


def _invented(tokens_BT: torch.Tensor) -> torch.Tensor:
    """Logits that depend on all tokens before, as those of a model do."""
    places = torch.arange(1, tokens_BT.shape[1] + 1)
    seen_BT = (tokens_BT * places).cumsum(1)
    logits_BTV = torch.sin(seen_BT[..., None] * torch.tensor([1.3, 2.1, 0.7, 1.9, 1.1]))
    return logits_BTV - torch.tensor([0.0, 0.0, 0.0, 9.0, 0.0])  # no `⟶` in an answer


def _every_answer(most: int) -> Iterator[list[int]]:
    for length in range(most):
        for made in itertools.product(range(4), repeat=length):
            yield [*made, 4]


def test_a_wide_enough_beam_finds_what_is_most_probable_of_all() -> None:
    model = Neural(_invented, _Letters(), 6)  # `⟦end⟧ a ⟶` leaves three tokens
    (found,) = model.translate(["a"], 600)
    rows = [[4, 0, 3, *answer] for answer in _every_answer(3)]
    best = -math.inf
    for row in rows:
        log_TV = torch.log_softmax(_invented(torch.tensor([row]))[0], dim=-1)
        each = [float(log_TV[place - 1, row[place]]) for place in range(3, len(row))]
        best = max(best, sum(each) / len(each))
    assert found.log_probability / found.num_tokens == pytest.approx(best, abs=1e-5)
    assert found.finished


def test_sources_searched_together_are_translated_as_alone() -> None:
    model = Neural(_invented, _Letters(), 24)
    sources = ["".join(p) for n in (1, 2, 3) for p in itertools.product("abc", repeat=n)]
    assert model.translate(sources) == [model.translate([source])[0] for source in sources]
    targets = [source[::-1] * 2 for source in sources]
    alone = [model.log_probabilities([s], [t])[0] for s, t in zip(sources, targets, strict=True)]
    assert model.log_probabilities(sources, targets) == pytest.approx(alone, abs=1e-5)


def test_tokens_are_where_the_model_is() -> None:
    seen: list[str] = []

    def elsewhere(tokens_BT: torch.Tensor) -> torch.Tensor:
        seen.append(tokens_BT.device.type)
        return torch.zeros((*tokens_BT.shape, 5), device=tokens_BT.device)

    model = Neural(elsewhere, _Letters(), 12, torch.device("meta"))
    for ask in (lambda: model.translate(["a"]), lambda: model.log_probabilities(["a"], ["b"])):
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
            ask()  # values of `meta` cannot be read
    assert seen == ["meta", "meta"]


def test_what_a_search_found_scores_the_same_when_it_is_given() -> None:
    model = Neural(_invented, _Letters(), 24)
    for source in ("ab", "c", "cab"):
        (one,) = model.translate([source])
        assert one.finished
        given = model.log_probabilities([source], [one.text])[0]
        assert given == pytest.approx(one.log_probability / one.num_tokens, abs=1e-5)


def test_many_sentences_are_decoded_in_processes_as_in_one() -> None:
    decoder = _random_decoder(5)
    sources = [list(p) for p in itertools.permutations("abcd?", 3)]
    assert decoder.best_of_all(sources, 3) == [decoder.best(source, 3) for source in sources]


def _candidates(source: str, one: str, other: str) -> Candidates:
    decoder = _random_decoder(1)
    made = decoder.translate(words(one))
    return Candidates(
        source, type(made)(tuple(words(one)), -1.0, made.figures, made.phrase_lengths),
        Written(other, -4.0, 3, True, 0.1, -2.0), -2.5,
    )  # fmt: skip


def test_there_are_features_enough_for_any_text_and_none_knows_a_reference() -> None:
    for source, one, other in [("a ⟦1⟧", "b ⟦1⟧", "c"), ("", "", ""), ("漢字 9", "x", "y 9 9")]:
        row = features(_candidates(source, one, other), {"a": 3}, lambda side: -1.0 * len(side))
        assert len(row) >= 24
        assert all(math.isfinite(value) for value in row.values())


def test_the_one_that_keeps_its_placeholders_is_shown_whatever_the_judge_says() -> None:
    assert chosen(_candidates("a ⟦1⟧", "b ⟦1⟧", "c"), 0.99, 0.5) == "statistical"
    assert chosen(_candidates("a ⟦1⟧", "b", "c ⟦1⟧"), 0.01, 0.5) == "neural"
    assert chosen(_candidates("a", "b", "c"), 0.5, 0.5) == "neural"


def test_a_repaired_translation_has_the_marks_of_its_source() -> None:
    for text in ("x", "⟦2⟧ ⟦2⟧ y", "⟦1⟧ a ⟦2⟧"):
        assert marks(repaired("⟦1⟧ of ⟦2⟧", text)) == marks("⟦1⟧ of ⟦2⟧")
    assert repaired("⟦1⟧ of ⟦2⟧", "⟦1⟧ a ⟦2⟧") == "⟦1⟧ a ⟦2⟧"


def test_the_judge_is_better_than_chance(tmp_path: Path) -> None:
    pytest.importorskip("catboost", reason="the extra `translate` is not installed")
    draw = random.Random(4)
    rows = [{"length": float(draw.randint(1, 20)), "noise": draw.random()} for _ in range(400)]
    one = [50.0 + draw.gauss(0, 5) for _ in rows]
    other = [30.0 + 2 * row["length"] + draw.gauss(0, 5) for row in rows]
    made = judging.train(rows[:300], one[:300], other[:300])
    made.save(tmp_path / "judge.cbm")
    for judge in (made, judging.load(tmp_path / "judge.cbm")):
        says = judge.probability(rows[300:]) >= judge.threshold
        right = sum(
            bool(s) == (b > a) for s, a, b in zip(says, one[300:], other[300:], strict=True)
        )
        assert right >= 80
    assert made.importances()[0][0] == "length"
    assert made.reasons(rows[0])[0][0] == "length"


class _Judge:
    threshold = 0.5

    def probability(self, rows: list[dict[str, float]]) -> list[float]:
        return [0.2 for _ in rows]

    def reasons(self, row: dict[str, float]) -> list[tuple[str, float, float]]:
        return [("source_words", row["source_words"], -0.3)]


class _Neural:
    def translate(self, sources: list[str], width: int) -> list[Written]:
        return [Written(source.upper(), -4.0, 3, True, 0.1, -2.0) for source in sources]

    def log_probabilities(self, sources: list[str], targets: list[str]) -> list[float]:
        return [-2.5 for _ in sources]


def _hybrid(tmp_path: Path) -> Hybrid:
    return Hybrid(_statistical(tmp_path), _Neural(), _Judge())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["x" * 10_000, "a b " * 100, "漢字 한글 עברית", "a\x00b", "\ud800 x", "%s {a} ⟦3⟧ a"]
)
def test_hostile_text_is_translated(tmp_path: Path, text: str) -> None:
    assert all(one.text for one in _hybrid(tmp_path).translate(text))


@pytest.mark.parametrize("text", ["", "123 !?", "\x00", "a" * 20_001])
def test_what_cannot_be_translated_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"text has"):
        sentences(text)
    assert "Translate" in page(_hybrid(tmp_path), text)


def test_the_page_shows_both_and_escapes_them(tmp_path: Path) -> None:
    shown = page(_hybrid(tmp_path), "the <b>house</b> &")
    assert "&lt;b&gt;Haus&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert "class='chosen'" in shown


def test_measures_of_known_answers() -> None:
    pytest.importorskip("sacrebleu", reason="the extra `translate` is not installed")
    wanted = [t for _, t in _tiny(30)]
    perfect, bad = quality(wanted, wanted, 50), quality(["x y"] * 30, wanted, 50)
    assert perfect.bleu == pytest.approx(100)
    assert perfect.chrf == pytest.approx(100)
    assert p_value(perfect.bleu_samples, bad.bleu_samples) == pytest.approx(1 / 51)
    assert p_value(bad.bleu_samples, bad.bleu_samples) == 1
    assert survival(["⟦1⟧ a", "b", "⟦1⟧"], ["A ⟦1⟧", "B", "x"]) == (2, 1)
    assert by_group(["b", "a", "b"], [1, 2, 3], [0, 0, 0], [1, 2, 3])[1] == ("b", 2, 2.0, 0.0, 2.0)
