"""Preparation: from the recipe's sources to a folder of shards, made once and found again.

A folder's name ends in a hash over everything that decides its content. It is made under another
name and renamed when whole, so that two processes preparing the same data do not meet.
"""

import hashlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from longhaul.config.data import DataSection, TokenizerSection
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, RecipeError
from longhaul.core.files import sha256_of, write_bytes, write_json
from longhaul.core.output import Say
from longhaul.core.units import short_bytes, short_count, short_seconds
from longhaul.data.clean.cleaner import filter_files
from longhaul.data.contamination import evaluation_identities
from longhaul.data.corpus.engine import Resources, has_daft
from longhaul.data.corpus.refine import Refinery, goes_in_parts
from longhaul.data.dataset import DATASET_FORMAT, MANIFEST, Dataset, SourceTokens, open_dataset
from longhaul.data.finishing import commit, refused, remove_abandoned, unfinished
from longhaul.data.one_pass import write_in_one_pass
from longhaul.data.shards import SHARD_VERSION
from longhaul.data.sources import Corpus, file_stem, locate
from longhaul.data.survey import SourceSurvey, Survey
from longhaul.data.tokenize import (
    OtherForm,
    TextInOneProcess,
    TokenSurvey,
    survey_tokens,
    write_tokens,
)
from longhaul.data.tokenizer_files import PICKLE_ADVICE, TokenizerFiles, find_tokenizer, load_given
from longhaul.data.tokenizing import ByteTokenizer, CharacterTokenizer, NumberTokenizer, Tokenizer

_DEFAULT_VOCAB = 8192
STAGES = "corpus"
"""Folder of what large text is made from, beside the prepared ones."""
LEFT_OUT = "left-out.json"
"""In a prepared folder: documents that cleaning, filters and contamination left out or changed."""
_NOT_PREPARED: dict[str, Any] = {
    "loss_from": True, "temperature": True, "sources": {"__all__": {"max_epochs"}},
}  # fmt: skip
"""As stages of the mixture, these decide what is read when, or counts, and nothing that is
prepared."""
_LATER = frozenset(
    {"adapter", "clean", "contamination", "dedup", "filtered", "filters", "url_field"}
)
"""Settings that the first prepared folders did not know."""


def prepare(
    recipe: Recipe,
    home: Path,
    say: Say,
    tokenizer: Path | None = None,
    resources: Resources | None = None,
) -> Dataset:
    """Prepare the recipe's data in a folder below `home`, or reuse it if it is there.

    Its `data` and `tokenizer` sections count, and for `synthetic` its seed. `home` holds prepared
    folders, `corpus` with what large ones are made from, and `downloads`, and is made if absent.
    `tokenizer`: the file of one that a run has already, and that no other is made for.
    `resources`: who asks for any has the text prepared in parts, as a large one always is.

    Raises:
        DataError: a source is missing, broken beyond the limit, or too small to split.
        RecipeError: the tokenizer cannot do what the recipe wants.
        LonghaulError: the disk is full or refuses.
    """
    clock = RealClock()
    began = clock.monotonic()
    try:
        corpora, given = _given(recipe, home / "downloads", say)
        given = given if tokenizer is None else (tokenizer,)
        _check_kinds(recipe.tokenizer, corpora)
        folder = home / _folder_name(recipe, corpora, given, home / "downloads")
        if (found := _reusable(folder, say)) is not None:
            return found
        home.mkdir(parents=True, exist_ok=True)
        remove_abandoned(home)
        tokens = home / STAGES / folder.name
        with unfinished(home, folder.name) as temporary:
            _fill(temporary, _Work(recipe, corpora, given, tokens, resources, say))
            commit(temporary, folder)
        shutil.rmtree(tokens, ignore_errors=True)
        dataset = open_dataset(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
    except OSError as error:
        raise refused(error, home) from error
    say(
        f"data: prepared {folder} ({short_bytes(size)} on disk) "
        f"in {short_seconds(clock.monotonic() - began)}"
    )
    return dataset


def prepared_folder(recipe: Recipe, home: Path, say: Say) -> Path:
    """Where `prepare` puts a recipe's data, there or not. DataError if a source is missing."""
    downloads = home / "downloads"
    return home / _folder_name(recipe, *_given(recipe, downloads, say), downloads)


def _given(
    recipe: Recipe, downloads: Path, say: Say
) -> tuple[tuple[Corpus, ...], TokenizerFiles | None]:
    corpora = tuple(locate(s, recipe.seed, downloads, say) for s in recipe.data.sources)
    settings = recipe.tokenizer
    if settings.kind != "file" or settings.path is None:
        return corpora, None
    return corpora, find_tokenizer(settings.path, downloads, say)


def _folder_name(
    recipe: Recipe,
    corpora: tuple[Corpus, ...],
    tokenizer: TokenizerFiles | None,
    downloads: Path,
) -> str:
    """Ends in twelve digits that stand for everything that decides the prepared bytes."""
    decisive: dict[str, Any] = {
        "formats": [DATASET_FORMAT, SHARD_VERSION],
        "data": _decisive(recipe.data),
        "tokenizer": _settings(recipe.tokenizer),
        "tokenizer_file": [sha256_of(p) for p in tokenizer] if tokenizer else None,
        "corpora": [corpus.identity for corpus in corpora],
    }
    kinds = {bool(corpus.token_files) for corpus in corpora}
    if len(kinds) > 1:
        decisive["tokens_held_out_by"] = "text"  # before, they were by the tokens themselves
    if recipe.data.contamination.action != "off":
        decisive["evaluation_sets"] = evaluation_identities(
            recipe.data, recipe.seed, downloads, lambda _: None
        )
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return f"{file_stem(corpora[0].name)}-{digest[:12]}"


def _settings(tokenizer: TokenizerSection) -> dict[str, Any]:
    """Begin-of-text only where it is used: data prepared before there was any keeps its name."""
    unused = set() if tokenizer.begin_of_text else {"begin_of_text"}
    return tokenizer.model_dump(mode="json", exclude=unused)


def _at_borders(settings: TokenizerSection, tokenizer: Tokenizer) -> dict[str, bool | str]:
    """What to load the tokenizer again with."""
    end, begin = settings.end_of_text, settings.begin_of_text
    ends = end if isinstance(end, str) else tokenizer.end_of_text is not None
    return {"end_of_text": ends} | ({"begin_of_text": begin} if begin else {})


def _decisive(data: DataSection) -> dict[str, Any]:
    """Settings of what is prepared, without those that came later and are not in use: what was
    prepared before they came is found again. A file that a filter reads counts with its content.
    """
    values = data.model_dump(mode="json", exclude={"stages": True, **_NOT_PREPARED})
    for section, table in [(data, values), *zip(data.sources, values["sources"], strict=True)]:
        for name in _LATER & table.keys():
            field = type(section).model_fields[name]
            if getattr(section, name) == field.get_default(call_default_factory=True):
                del table[name]
    if files := filter_files(data.filters):
        values["filter_files"] = [sha256_of(path) for path in files]
    return values


def _check_kinds(settings: TokenizerSection, corpora: tuple[Corpus, ...]) -> None:
    """Tokens need the tokenizer that made them, and numbers are none that reads text."""
    for corpus in corpora:
        if corpus.token_files and settings.kind in ("bpe", "characters"):
            beside = any((f.path.parent / "meta.pkl").exists() for f in corpus.token_files)
            way = (
                'give the tokenizer that made them with tokenizer.kind = "file", or set '
                'tokenizer.kind = "numbers" and tokenizer.vocab_size'
            )
            raise RecipeError(
                f"tokenizer.kind: {settings.kind} is made from text, but {corpus.name} is tokens "
                "already" + (" (its meta.pkl is a pickle and stays closed)" if beside else ""),
                PICKLE_ADVICE if beside else way,
            )
        if not corpus.token_files and settings.kind == "numbers":
            raise RecipeError(
                f"tokenizer.kind: numbers makes no tokens of text, but {corpus.name} is text",
                "set tokenizer.kind to bpe, bytes, characters or file",
            )


def _reusable(folder: Path, say: Say) -> Dataset | None:
    if not (folder / MANIFEST).exists():
        return None
    try:
        found = open_dataset(folder)
    except DataError as damage:
        say(f"data: {damage.message}; preparing it again")
        return None
    text = f"{short_bytes(found.num_bytes)} of text" if found.num_bytes else "text not known"
    say(
        f"data: reusing {short_count(found.num_tokens)} tokens and tokenizer in {folder} "
        f"({text}, prepared {found.prepared})"
    )
    return found


@dataclass(frozen=True)
class _Work:
    """What is asked of a preparation."""

    recipe: Recipe
    corpora: tuple[Corpus, ...]
    given: TokenizerFiles | None
    tokens: Path
    """Where tokens of parts go until they are laid into shards."""
    resources: Resources | None
    say: Say

    def token_surveys(self) -> dict[int, TokenSurvey]:
        """What the sources of tokens hold, by number of the source; none makes a tokenizer."""
        numbers = [number for number, corpus in enumerate(self.corpora) if corpus.token_files]
        if not numbers:
            return {}
        recipe, say = self.recipe, self.say
        tokenizer = _make_tokenizer(recipe.tokenizer, None, self.given, lambda _: None)
        by_text = len(numbers) < len(self.corpora)
        return {
            n: survey_tokens(self.corpora[n], recipe.data, tokenizer, by_text, say) for n in numbers
        }

    def text(self, other: OtherForm | None) -> TextInOneProcess | Refinery:
        """Sources of text on their way to shards."""
        data, text = self.recipe.data, tuple(c for c in self.corpora if not c.token_files)
        if self.resources is None and not goes_in_parts(text, data):
            return TextInOneProcess(text, data, other, self.say)
        resources = Resources.of_machine() if self.resources is None else self.resources
        if not has_daft() and (os.cpu_count() or 1) > 1:
            self.say("data: on one core, without Daft; on all: pip install 'longhaul[corpus]'")
        return Refinery(text, data, other, self.recipe.seed, self.tokens, resources, self.say)


def _fill(folder: Path, work: _Work) -> None:
    """Tokenizer, shards, and the manifest last."""
    recipe, say = work.recipe, work.say
    given_tokens = work.token_surveys()
    other = OtherForm.of(given_tokens.values()) if given_tokens else None
    text = work.text(other)
    ready = work.given is not None or recipe.tokenizer.kind == "bytes"
    at_once = text if ready and isinstance(text, TextInOneProcess) else None
    survey = None if at_once else text.survey(recipe.tokenizer)
    tokenizer = _make_tokenizer(recipe.tokenizer, survey, work.given, say)
    write_bytes(folder / tokenizer.file_name, tokenizer.content())
    made: list[tuple[SourceSurvey, SourceTokens]] = []
    surveyed = iter(enumerate(survey.sources if survey else ()))
    for number, corpus in enumerate(work.corpora):
        stem = folder / f"{number:02d}-{file_stem(corpus.name)}"
        if other is not None and corpus.token_files:
            tokens = given_tokens[number]
            source = write_tokens(stem, corpus, tokens, other, recipe.data, tokenizer, say)
            made.append((tokens.survey, source))
        elif at_once is not None:
            apart = partial(at_once.is_apart, tokenizer=tokenizer)
            made.append(
                write_in_one_pass(stem, corpus, at_once.seen, apart, recipe.data, tokenizer, say)
            )
        else:
            of_text, found = next(surveyed)
            made.append((found, text.tokens(of_text, stem, found, tokenizer)))
    if isinstance(text, Refinery) and any((left_out := text.left_out()).values()):
        write_json(folder / LEFT_OUT, left_out)
        say(f"data: what was left out, with examples: {LEFT_OUT} in the prepared folder")
    write_json(folder / MANIFEST, _manifest(folder, recipe, tokenizer, made))


def _make_tokenizer(
    settings: TokenizerSection, survey: Survey | None, given: TokenizerFiles | None, say: Say
) -> Tokenizer:
    if given is not None:
        tokenizer = load_given(given, settings.end_of_text, settings.begin_of_text)
        say(f"tokenizer: {tokenizer.vocab_size:,} tokens from {given[0]}")
        return tokenizer
    if settings.kind == "characters" and survey is not None:
        characters = CharacterTokenizer(survey.characters, bool(settings.end_of_text))
        say(f"tokenizer: {characters.vocab_size:,} characters")
        return characters
    if settings.kind == "numbers" and settings.vocab_size is not None:
        return NumberTokenizer(settings.vocab_size, bool(settings.end_of_text))
    if settings.kind == "bytes":
        return ByteTokenizer(bool(settings.end_of_text))
    from longhaul.data.subwords import train_bpe

    assert survey is not None, "no tokenizer is made from tokens"
    clock = RealClock()
    began = clock.monotonic()
    wanted = settings.vocab_size or _DEFAULT_VOCAB
    trained = train_bpe(survey.sample.texts(), wanted, bool(settings.end_of_text))
    fewer = f" (asked for {wanted:,}; there is no more to merge)"
    say(
        f"tokenizer: bpe of {trained.vocab_size:,} tokens"
        f"{fewer if trained.vocab_size < wanted else ''}, trained on "
        f"{short_bytes(survey.sample.num_bytes)} in {short_seconds(clock.monotonic() - began)}"
    )
    return trained


def _manifest(
    folder: Path,
    recipe: Recipe,
    tokenizer: Tokenizer,
    made: list[tuple[SourceSurvey, SourceTokens]],
) -> dict[str, Any]:
    def file_facts(path: Path) -> dict[str, Any]:
        return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}

    return {
        "format": DATASET_FORMAT,
        "prepared": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "recipe": {
            "data": recipe.data.model_dump(mode="json", exclude=_NOT_PREPARED),
            "tokenizer": _settings(recipe.tokenizer),
        },
        "tokenizer": {
            **file_facts(folder / tokenizer.file_name),
            "vocab_size": tokenizer.vocab_size,
            **_at_borders(recipe.tokenizer, tokenizer),
        },
        "sources": [
            {
                "name": source.name,
                "weight": source.weight,
                "split": source.split,
                "documents": found.num_documents,
                "duplicates_dropped": found.num_duplicates,
                "skipped": found.skipped,
                "bytes": source.train.num_bytes + source.held_out.num_bytes,
                "tokens": {
                    "train": source.train.num_tokens,
                    "held_out": source.held_out.num_tokens,
                },
                "train": [file_facts(path) for path in source.train.paths],
                "held_out": [file_facts(path) for path in source.held_out.paths],
            }
            for found, source in made
        ],
    }
