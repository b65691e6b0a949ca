"""Preparation: from the recipe's sources to a folder of shards, made once and found again.

Enters: a recipe and the folder that holds prepared data. Leaves: an open `Dataset`.
Never knows: training, runs, the command line.

A folder's name ends in a hash over everything that decides its content, so finding it again
takes a listing and no reading. It is made under another name and renamed when its manifest is
in it: there is never half a folder, and two processes preparing the same data do not meet.
"""

import errno
import hashlib
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from longhaul.config.data import TokenizerSection
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, LonghaulError, RecipeError
from longhaul.core.files import fsync_folder, sha256_of, write_json
from longhaul.core.units import short_bytes, short_count, short_seconds
from longhaul.data.dataset import (
    DATASET_FORMAT,
    MANIFEST,
    TOKENIZER_FILE,
    Dataset,
    SourceTokens,
    open_dataset,
)
from longhaul.data.dedup import ExactDuplicates
from longhaul.data.shards import SHARD_VERSION
from longhaul.data.sources import Corpus, Say, file_stem, locate
from longhaul.data.survey import Survey, take_survey
from longhaul.data.tokenize import SourceShards, write_source
from longhaul.data.tokenizing import Tokenizer, load_tokenizer

_DEFAULT_VOCAB = 8192
_UNFINISHED = ".preparing"
_ABANDONED_S = 24 * 3600.0


def prepare(recipe: Recipe, home: Path, say: Say) -> Dataset:
    """Prepare the recipe's data in a folder below `home`, or reuse it if it is there.

    Args:
        recipe: its `data` and `tokenizer` sections, and for `synthetic` its seed, count.
        home: holds prepared folders and `downloads`; made if absent.
        say: is told each stage with its figures, a line at a time.

    Raises:
        DataError: a source is missing, broken beyond the limit, or too small to split.
        RecipeError: the tokenizer asked for cannot do what the recipe wants.
        LonghaulError: the disk is full or refuses.
    """
    try:
        return _prepare(recipe, home, say)
    except OSError as error:
        raise _refused(error, home) from error


def _prepare(recipe: Recipe, home: Path, say: Say) -> Dataset:
    clock = RealClock()
    began = clock.monotonic()
    downloads = home / "downloads"
    corpora = tuple(locate(s, recipe.seed, downloads, say) for s in recipe.data.sources)
    given = _given_tokenizer(recipe.tokenizer, downloads, say)
    folder = home / f"{file_stem(corpora[0].name)}-{_key(recipe, corpora, given)}"
    if (found := _reusable(folder, say)) is not None:
        return found
    home.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(home)
    with _unfinished(home, folder.name) as temporary:
        _fill(temporary, recipe, corpora, given, say)
        _commit(temporary, folder)
    dataset = open_dataset(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(
        f"data: prepared {folder} ({short_bytes(size)} on disk) "
        f"in {short_seconds(clock.monotonic() - began)}"
    )
    return dataset


def _given_tokenizer(settings: TokenizerSection, downloads: Path, say: Say) -> Path | None:
    """The local `tokenizer.json` of kind `file`."""
    if settings.kind != "file" or settings.path is None:
        return None
    if "://" in settings.path and not settings.path.startswith("file://"):
        from longhaul.data.remote import fetch

        fetched = fetch(settings.path, downloads, say, kinds_known=False)
        if len(fetched) != 1:
            raise RecipeError(
                f"tokenizer.path: {settings.path} is {len(fetched)} files",
                "name the tokenizer.json itself",
            )
        return fetched[0].path
    path = Path(settings.path.removeprefix("file://")).expanduser()
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if not path.is_file():
        raise DataError(f"tokenizer.path: {path}: no such file", f"paths start at {Path.cwd()}")
    return path


def _key(recipe: Recipe, corpora: tuple[Corpus, ...], tokenizer: Path | None) -> str:
    """Twelve hexadecimal digits that stand for everything that decides the prepared bytes."""
    decisive = {
        "formats": [DATASET_FORMAT, SHARD_VERSION],
        "data": recipe.data.model_dump(mode="json"),
        "tokenizer": recipe.tokenizer.model_dump(mode="json"),
        "tokenizer_file": sha256_of(tokenizer) if tokenizer else None,
        "corpora": [corpus.identity for corpus in corpora],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def _reusable(folder: Path, say: Say) -> Dataset | None:
    if not (folder / MANIFEST).exists():
        return None
    try:
        found = open_dataset(folder)
    except DataError as damage:
        say(f"data: {damage.message}; preparing it again")
        return None
    say(
        f"data: reusing {short_count(found.num_tokens)} tokens and tokenizer in {folder} "
        f"({short_bytes(found.num_bytes)} of text, prepared {found.prepared})"
    )
    return found


def _fill(
    folder: Path, recipe: Recipe, corpora: tuple[Corpus, ...], given: Path | None, say: Say
) -> None:
    """Both passes, and the manifest last."""
    survey = take_survey(corpora, recipe.data, recipe.tokenizer, say)
    tokenizer = _make_tokenizer(recipe.tokenizer, survey, given, say)
    tokenizer.save(folder / TOKENIZER_FILE)
    duplicates = ExactDuplicates() if recipe.data.drop_exact_duplicates else None
    sources = [
        write_source(
            corpus, found, recipe.data, duplicates, tokenizer,
            SourceShards(folder, number, corpus.name, tokenizer), say,
        )
        for number, (corpus, found) in enumerate(zip(corpora, survey.sources, strict=True))
    ]  # fmt: skip
    write_json(folder / MANIFEST, _manifest(folder, recipe, survey, tokenizer, sources))


def _make_tokenizer(
    settings: TokenizerSection, survey: Survey, given: Path | None, say: Say
) -> Tokenizer:
    from longhaul.data.alphabets import ByteTokenizer, CharacterTokenizer

    if given is not None:
        tokenizer = load_tokenizer(given, settings.end_of_text)
        if settings.end_of_text and tokenizer.end_of_text is None:
            raise RecipeError(
                f"tokenizer.end_of_text: true, but {given} has no <|endoftext|>, </s>, <eos> or "
                "<|end_of_text|>",
                "set tokenizer.end_of_text = false, or give a tokenizer that has one",
            )
        say(f"tokenizer: {tokenizer.vocab_size:,} tokens from {given}")
        return tokenizer
    if settings.kind == "characters":
        characters = CharacterTokenizer(survey.characters, settings.end_of_text)
        say(f"tokenizer: {characters.vocab_size:,} characters")
        return characters
    if settings.kind == "bytes":
        return ByteTokenizer(settings.end_of_text)
    from longhaul.data.subwords import train_bpe

    clock = RealClock()
    began = clock.monotonic()
    asked = settings.vocab_size or _DEFAULT_VOCAB
    trained = train_bpe(survey.sample.texts(), asked, settings.end_of_text)
    fewer = f" (asked for {asked:,}; there is no more to merge)"
    say(
        f"tokenizer: bpe of {trained.vocab_size:,} tokens"
        f"{fewer if trained.vocab_size < asked else ''}, trained on "
        f"{short_bytes(survey.sample.num_bytes)} in {short_seconds(clock.monotonic() - began)}"
    )
    return trained


def _manifest(
    folder: Path,
    recipe: Recipe,
    survey: Survey,
    tokenizer: Tokenizer,
    sources: list[SourceTokens],
) -> dict[str, Any]:
    def file_facts(path: Path) -> dict[str, Any]:
        return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}

    def source_facts(number: int, source: SourceTokens) -> dict[str, Any]:
        found = survey.sources[number]
        facts: dict[str, Any] = {
            "name": source.name,
            "weight": source.weight,
            "split": source.split,
            "documents": found.num_documents,
            "duplicates_dropped": found.num_duplicates,
            "skipped": found.skipped,
        }
        for key, stream in (("train", source.train), ("held_out", source.held_out)):
            facts[key] = [file_facts(path) for path in stream.paths]
        return facts

    return {
        "format": DATASET_FORMAT,
        "prepared": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "recipe": {
            "data": recipe.data.model_dump(mode="json"),
            "tokenizer": recipe.tokenizer.model_dump(mode="json"),
        },
        "tokenizer": {
            **file_facts(folder / TOKENIZER_FILE),
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text is not None,
        },
        "sources": [source_facts(number, source) for number, source in enumerate(sources)],
    }


@contextmanager
def _unfinished(home: Path, name: str) -> Iterator[Path]:
    """A folder to work in, gone afterwards unless it was renamed, whatever happens."""
    marks = f"{os.getpid()}-{platform.node()}-{uuid.uuid4().hex[:8]}"
    folder = home / f"{_UNFINISHED}-{marks}-{name}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commit(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name, unless somebody else has finished the same one."""
    fsync_folder(temporary)
    for _ in range(3):
        try:
            temporary.rename(folder)
            fsync_folder(folder.parent)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            open_dataset(folder)
            return
        except DataError:
            # A damaged folder is in the way. Renamed first: whoever has it mapped keeps it, and
            # nobody finds it half removed.
            aside = temporary.with_name(f"{temporary.name}-replaced")
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    raise LonghaulError(f"{folder}: something keeps replacing it with damaged data")


def _remove_abandoned(home: Path) -> None:
    """Remove what killed preparations left behind.

    Their process is dead or, when it ran on another machine, nothing in their folder has
    changed for a day.
    """
    here = platform.node()
    for folder in home.glob(f"{_UNFINISHED}-*"):
        process, _, rest = folder.name.removeprefix(f"{_UNFINISHED}-").partition("-")
        if not process.isdecimal():
            continue
        if rest.startswith(f"{here}-"):
            dead = not psutil.pid_exists(int(process))
        else:
            try:
                newest = max(p.stat().st_mtime for p in (folder, *folder.iterdir()))
            except OSError:  # its owner is removing it right now
                continue
            dead = RealClock().wall() - newest > _ABANDONED_S
        if dead:
            shutil.rmtree(folder, ignore_errors=True)


def _refused(error: OSError, home: Path) -> LonghaulError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        nearest = next(p for p in (home, *home.absolute().parents) if p.exists())
        free = short_bytes(shutil.disk_usage(nearest).free)
        return LonghaulError(
            f"{home}: no space left on this disk while preparing data ({free} free now)",
            "free some space, or keep prepared data on another disk; nothing half-made was left",
        )
    return LonghaulError(
        f"{error.filename or home}: {error.strerror or error}",
        "prepared data needs a folder that can be written to",
    )
