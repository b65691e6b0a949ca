"""The statistical system as a whole: made from pairs, kept in a folder, opened again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.translate.alignment import align
from examples.translate.catalogues import Pair
from examples.translate.decoder import Decoder, Hypothesis
from examples.translate.ngram import LanguageModel
from examples.translate.phrases import Option, PhraseTable, phrase_table
from examples.translate.text import words
from examples.translate.tuning import tuned

from longhaul import UsageError

_TABLE, _TARGETS, _SETTINGS = "table.jsonl", "targets.txt", "decoder.json"


@dataclass
class Statistical:
    """A decoder, and what the judge asks of its training text."""

    decoder: Decoder

    @property
    def word_counts(self) -> dict[str, int]:
        """How often each source word was seen."""
        return self.decoder.table.word_counts

    def translate(self, sources: Sequence[Sequence[str]]) -> list[Hypothesis]:
        """The best translation found of each sentence of words."""
        return [found[0] for found in self.decoder.best_of_all(sources, 1)]

    def log_probability(self, sentence: list[str]) -> float:
        """Of a sentence of the target language, in nats."""
        return self.decoder.language_model.score(sentence)


def make(
    train: Sequence[Pair],
    tuning: Sequence[Pair],
    folder: Path,
    rounds: int = 3,
    say: Callable[[str], None] = print,
) -> Statistical:
    """Align, count, tune, and keep it in `folder`."""
    sources, targets = ([words(side) for side in sides] for sides in (
        [p.source for p in train], [p.target for p in train]))  # fmt: skip
    links = align(sources, targets)
    say(f"aligned: {len(links):,} pairs, {sum(map(len, links)):,} links")
    table = phrase_table(sources, targets, links)
    say(f"phrases: {len(table.options):,} of the source, {sum(map(len, table.options.values())):,} "
        "translations")  # fmt: skip
    decoder = Decoder(table, LanguageModel(targets))
    asked = [words(p.source) for p in tuning], [words(p.target) for p in tuning]
    made = Statistical(tuned(decoder, *asked, rounds, say=say))
    _save(made, targets, folder)
    return made


def _save(made: Statistical, targets: Sequence[Sequence[str]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = made.decoder.table
    with (folder / _TABLE).open("w") as file:
        for phrase, options in table.options.items():
            kept = [[o.words, [round(s, 4) for s in o.scores], o.count] for o in options]
            file.write(json.dumps([phrase, kept]) + "\n")
    (folder / _TARGETS).write_text("\n".join(map(" ".join, targets)) + "\n")
    # Last, as the sign that the others are whole.
    settings = {"weights": made.decoder.weights, "word_counts": table.word_counts}
    (folder / _SETTINGS).write_text(json.dumps(settings))


def load(folder: Path) -> Statistical:
    """What `make` kept; the language model is counted again. UsageError if nothing is there."""
    try:
        settings = json.loads((folder / _SETTINGS).read_text())
        options = {}
        with (folder / _TABLE).open() as file:
            for line in file:
                phrase, kept = json.loads(line)
                options[tuple(phrase)] = tuple(
                    Option(tuple(made), tuple(scores), count) for made, scores, count in kept
                )
        targets = [line.split(" ") for line in (folder / _TARGETS).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder}: holds no statistical translator ({error})", "run `make translate`"
        ) from None
    table = PhraseTable(options, settings["word_counts"])
    return Statistical(Decoder(table, LanguageModel(targets), tuple(settings["weights"])))
