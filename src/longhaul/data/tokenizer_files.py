"""The tokenizer that a recipe gives: found, fetched, and loaded."""

import difflib
from pathlib import Path
from typing import TypeAlias

from longhaul.core.addresses import without_secrets
from longhaul.core.errors import DataError, RecipeError
from longhaul.core.output import Say
from longhaul.data.dataset import MAX_TOKENIZER_BYTES, load_tokenizer
from longhaul.data.tokenizing import BEGINS_OF_TEXT, ENDS_OF_TEXT, Tokenizer, Wanted

_SHOWN_TOKENS = 8

_PARTNERS = {
    "vocab.bpe": "encoder.json", "encoder.json": "vocab.bpe",
    "merges.txt": "vocab.json", "vocab.json": "merges.txt",
}  # fmt: skip
_FORMATS = (
    "give a tokenizer.json, a SentencePiece .model, or GPT-2's vocab.bpe with encoder.json beside "
    "it"
)
PICKLE_ADVICE = (
    'for nanoGPT\'s shakespeare_char: prepare its input.txt with tokenizer.kind = "characters" and '
    "tokenizer.end_of_text = false, and give the tokenizer.json of that folder (both number "
    'characters alike); or set tokenizer.kind = "numbers" and tokenizer.vocab_size'
)

TokenizerFiles: TypeAlias = tuple[Path, ...]
"""`tokenizer.json` or a `.model`; of GPT-2's two `encoder.json`, then `vocab.bpe`."""


def find_tokenizer(given: str, downloads: Path, say: Say) -> TokenizerFiles:
    """The files of `tokenizer.path`, fetched if remote; DataError or RecipeError if it is none."""
    if without_secrets(given).lower().endswith((".pkl", ".pickle")):
        raise DataError(
            f"tokenizer.path: {without_secrets(given)}: a pickle is a program, and longhaul runs "
            "no program it is given as data",
            PICKLE_ADVICE,
        )
    if "://" in given and not given.startswith("file://"):
        partner = _partner(given)
        fetched = [_fetched(address, downloads, say) for address in (given, partner) if address]
        return _sorted(*fetched)
    path = Path(given.removeprefix("file://")).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise DataError(f"tokenizer.path: {path}: no such file", f"paths start at {Path.cwd()}")
    if (name := _partner(path.name)) is None:
        return (path,)
    if not (partner_path := path.with_name(name)).is_file():
        raise DataError(f"tokenizer.path: {path}: {name} is not beside it", _FORMATS)
    return _sorted(path, partner_path)


def load_given(
    files: TokenizerFiles, end_of_text: Wanted, begin_of_text: Wanted = False
) -> Tokenizer:
    """The tokenizer in these files; DataError if they are none, RecipeError without the tokens at a
    document's begin and end that are wanted, or if a text may become one of them.
    """
    path, *merges = files
    if not merges:
        tokenizer = load_tokenizer(path, end_of_text, begin_of_text)
    else:
        from longhaul.data.subwords import SubwordTokenizer, from_gpt2

        for each in files:
            if (size := each.stat().st_size) > MAX_TOKENIZER_BYTES:
                raise DataError(f"{each}: {size:,} bytes are no tokenizer's", _FORMATS)
        content = from_gpt2(path.read_bytes(), merges[0].read_bytes(), str(merges[0]))
        tokenizer = SubwordTokenizer(content, end_of_text, str(path), begin_of_text)
    for setting, wanted, usual, token in (
        ("end_of_text", end_of_text, ENDS_OF_TEXT, tokenizer.end_of_text),
        ("begin_of_text", begin_of_text, BEGINS_OF_TEXT, tokenizer.begin_of_text),
    ):
        if token is None:
            if not wanted:
                continue
            raise _no_such_token(setting, wanted, usual, tokenizer, path)
        named = isinstance(wanted, str) and wanted not in usual
        if named and token in tokenizer.encode(tokenizer.decode([token])):
            raise RecipeError(
                f"tokenizer.{setting}: {wanted!r} is an ordinary token of {path}: a text may hold "
                "it, and would be cut there",
                _tokens_to_name(tokenizer, str(wanted)),
            )
    return tokenizer


def _no_such_token(
    setting: str, wanted: Wanted, usual: tuple[str, ...], tokenizer: Tokenizer, path: Path
) -> RecipeError:
    if isinstance(wanted, str):
        message = f"tokenizer.{setting}: {path} has no token {wanted!r} that no text becomes"
        return RecipeError(message, _tokens_to_name(tokenizer, wanted))
    *most, last = usual
    return RecipeError(
        f"tokenizer.{setting}: true, but {path} has no {', '.join(most)} or {last}",
        f"set tokenizer.{setting} = false, or name another: {_tokens_to_name(tokenizer, usual[0])}",
    )


def _tokens_to_name(tokenizer: Tokenizer, wanted: str) -> str:
    """Those that could be meant, else the first there are."""
    known = [token for token in tokenizer.special_tokens() if token != wanted]
    if near := difflib.get_close_matches(wanted, known, 3, 0.6):
        return f"did you mean {' or '.join(near)}?"
    if not known:
        return "its file has no such tokens; give a tokenizer that has one"
    return f"it has {', '.join(known[:_SHOWN_TOKENS])}{', …' if known[_SHOWN_TOKENS:] else ''}"


def _fetched(address: str, downloads: Path, say: Say) -> Path:
    from longhaul.data.remote import fetch

    fetched = fetch(address, downloads, say, wanted="any")
    if len(fetched) != 1:
        raise RecipeError(f"tokenizer.path: {address} is {len(fetched)} files", _FORMATS)
    return fetched[0].path


def _partner(name: str) -> str | None:
    """The other file of GPT-2's pair."""
    for own, other in _PARTNERS.items():
        if name.endswith(own):
            return name.removesuffix(own) + other
    return None


def _sorted(*paths: Path) -> TokenizerFiles:
    return tuple(sorted(paths, key=lambda path: not path.name.endswith(".json")))


def _in_folder(folder: Path) -> Path:
    names = ["tokenizer.json", "tokenizer.model", "vocab.bpe", "merges.txt"]
    models = sorted(path.name for path in folder.glob("*.model"))
    for name in [*names, *(models if len(models) == 1 else [])]:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"tokenizer.path: {folder}: no tokenizer in this folder", _FORMATS)
