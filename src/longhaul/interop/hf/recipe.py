"""A recipe for a run that begins with published weights: their shape, their tokenizer, and the rest
as one would begin to train on with them.
"""

import re
from pathlib import Path

from longhaul.config.load import as_toml
from longhaul.config.model import ModelSection
from longhaul.core.errors import DataError, RecipeError
from longhaul.data.tokenizer_files import find_tokenizer, load_given
from longhaul.data.tokenizing import Tokenizer
from longhaul.interop.hf.families import family_of
from longhaul.interop.hf.given import model_of, refuse_unfit_shapes
from longhaul.interop.hf.own import OWN
from longhaul.interop.hf.published import read_config
from longhaul.interop.hf.weights import PublishedWeights

_REST = """\
[data]
sources = [{ path = "python-stdlib" }]  # until --data, or you, name a text of your own

[batch]
sequences = 8
micro_sequences = "auto"

[optim]
lr = 3e-5  # a tenth of what such models were trained with; give what your text bears
beta2 = 0.95
weight_decay = 0.1

[optim.schedule]
shape = "cosine"
warmup_steps = 100
final_fraction = 0.1

[train]
steps = 1000

[evaluation]
interval_steps = 100

[checkpoint]
interval_steps = 100
"""
_MOST_MULTIPLE = 4096


def recipe_for(folder: Path, name: str | None = None) -> tuple[str, str]:
    """Name and text of a recipe whose run begins with the weights in a folder. DataError if they
    are not of a family that is imported, damaged, or a program; RecipeError for a name of none.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder", "give the folder of a model, with config.json")
    name = re.sub(r"[^\w.-]+", "-", folder.name) if name is None else name
    if not re.fullmatch(r"[\w.-]+", name):
        raise RecipeError(f"--name {name}: not a run's name", "use letters, digits, . _ and -")
    model_type, theirs = read_config(folder)
    family = family_of(model_type, theirs.file)
    values = model_of(family, theirs)
    weights = PublishedWeights(folder, family.prefix)
    tokenizer = _tokenizer(folder)
    rows = theirs.whole("vocab_size")
    values["vocab_multiple"] = _multiple(tokenizer.vocab_size, rows, folder)
    model = ModelSection.model_validate(values)
    refuse_unfit_shapes(weights, family, model, tokenizer.vocab_size, folder)
    # Of every switch that there is, those that are off say nothing.
    shown = model.model_dump(exclude_defaults=True) if family is OWN else values
    lines = [
        f"# Goes on from the weights in {folder} ({model_type}).",
        f"name = {as_toml(name)}",
        f"summary = {as_toml(f'goes on from {folder.name} ({model_type})')}",
        "", "[init]", f"from = {as_toml(str(folder))}",
        "", "[tokenizer]", 'kind = "file"', f"path = {as_toml(str(folder))}",
        f"end_of_text = {as_toml(tokenizer.end_of_text is not None)}",
        "", "[model]",
        *(f"{key} = {as_toml(value)}" for key, value in shown.items() if value is not None),
        "", _REST,
    ]  # fmt: skip
    return name, "\n".join(lines)


def _tokenizer(folder: Path) -> Tokenizer:
    files = find_tokenizer(str(folder), folder, lambda _: None)
    try:
        return load_given(files, end_of_text=True)
    except RecipeError:  # it has no such token
        return load_given(files, end_of_text=False)


def _multiple(tokens: int, rows: int, folder: Path) -> int:
    """A `model.vocab_multiple` that pads the tokenizer's vocabulary to their rows."""
    if tokens > rows:
        raise DataError(
            f"{folder}: its tokenizer has {tokens:,} tokens, and its model {rows:,} rows for them",
            "give a folder whose tokenizer is the model's own",
        )
    powers = (1 << power for power in range(_MOST_MULTIPLE.bit_length()))
    return next((m for m in powers if -(-tokens // m) * m == rows), rows)
