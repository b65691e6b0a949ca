"""`longhaul export`: a run's model as a folder that transformers loads, kept only if it computes
there what it computes here.
"""

import os
import secrets
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from longhaul.board.card import CardFacts, model_card
from longhaul.board.facts import read_facts
from longhaul.config.model import ModelSection
from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.core.files import fsync_folder, write_bytes
from longhaul.core.output import Say
from longhaul.core.units import short_bytes, short_count
from longhaul.data.dataset import Dataset
from longhaul.interop.hf.agreement import (
    Agreement,
    compare,
    compare_tokenizers,
    refuse_without_transformers,
    version,
)
from longhaul.interop.hf.families import family_for, nearest_to
from longhaul.interop.hf.family import Family
from longhaul.interop.hf.folder import Exported, has_tokenizer, write_folder
from longhaul.interop.hf.own import CODE, OWN
from longhaul.logbook.folder import open_run
from longhaul.logbook.segments import read_segments
from longhaul.run.trained import Trained, open_trained

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WINDOW, _TOKENS = 1024, 2048
"""Of text that is compared: in one window at most, and about so many in all."""
_MOST_SOURCES = 4


def export(
    run: str,
    runs: Path,
    step: int | None,
    out: Path | None,
    dtype: Literal["float32", "bf16", "fp16"] | None,
    say: Say,
) -> Path:
    """Write the model of a run's checkpoint to a new folder; the folder. `dtype`: of its weights;
    as they were trained when None. UsageError if the folder is taken, or transformers is not
    there; DataError if it computes something else.
    """
    refuse_without_transformers()
    trained = open_trained(run, runs, step, device="cpu", by_layer=False)
    family = family_for(trained.recipe.model)
    folder = out or Path("exports") / f"{open_run(run, runs).name}-step-{trained.step}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already", "name another place with --out")
    model = trained.model
    held = DTYPES[dtype] if dtype else model.tokens.weight.dtype
    exported = Exported(model.float(), family, trained.recipe, trained.dataset.tokenizer, held)
    say(f"{folder}: {family.architecture}, {_shown(held)}, step {trained.step:,}")
    if needs := _needs(trained.recipe.model, family):
        say(needs)
    temporary = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(parents=True)
        write_folder(temporary, exported)
        checks = _compared(temporary, exported, trained.dataset, say)
        card = model_card(
            read_facts(open_run(run, runs), RealClock()),
            _card(run, runs, trained, exported, checks, needs),
        )
        write_bytes(temporary / "README.md", card.encode())
        fsync_folder(temporary)
        temporary.rename(folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror or error})",
            "make room, or name another place with --out",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _needs(model: ModelSection, family: Family) -> str:
    """What whoever loads the model needs beside transformers, in words; nothing for its classes."""
    if family is not OWN:
        return ""
    nearest, switches = nearest_to(model)
    return (
        f"No class of transformers has this model's switches (the nearest, {nearest.model_type}, "
        f"lacks {', '.join(switches)}), so the folder brings code of its own, {CODE.name}: who "
        "loads it needs `pip install longhaul`, and passes trust_remote_code=True."
    )


def _compared(folder: Path, exported: Exported, dataset: Dataset, say: Say) -> list[str]:
    """Compare what was written with ours, and say how well it agrees, a sentence each."""
    tokens_BT = _windows(exported, dataset)
    found = compare(folder, exported, tokens_BT)
    said = [_said(found, exported.dtype)]
    if has_tokenizer(exported.tokenizer):
        text = exported.tokenizer.decode(tokens_BT[0].tolist())
        compare_tokenizers(folder, exported.tokenizer, text)
        said.append("AutoTokenizer makes the tokens that the model was trained on.")
    else:
        said.append(
            "The text was tokens made elsewhere: put the tokenizer that made them into the folder."
        )
    if exported.recipe.model.document_mask and exported.family is not OWN:
        said.append("In training no token saw another document: give one document at a time.")
    for line in said:
        say(line)
    return said


def _windows(exported: Exported, dataset: Dataset) -> torch.Tensor:
    """Windows [B, T] of held-out text, evenly spread, without the token that ends documents: no
    text is encoded to it, and a model may see across it or not.
    """
    end, found = exported.tokenizer.end_of_text, list[list[int]]()
    streams = [s.held_out if s.held_out.num_tokens else s.train for s in dataset.sources]
    most = min(_WINDOW, exported.recipe.model.context)
    for stream in streams[:_MOST_SOURCES]:
        length = min(2 * most, stream.num_tokens)
        windows = max(1, _TOKENS // most // min(len(streams), _MOST_SOURCES))
        begins = np.linspace(0, stream.num_tokens - length, windows).astype(np.int64)
        rows = stream.gather(begins, length).tolist()
        found += [[token for token in row if token != end][:most] for row in rows]
    found = [row for row in found if len(row) == most] or found
    shortest = min(map(len, found))
    if shortest < 2:
        raise UsageError(
            "the run's text has no token beside end-of-text to compare models on",
            "nothing was exported",
        )
    return torch.tensor([row[:shortest] for row in found])


def _said(found: Agreement, dtype: torch.dtype) -> str:
    text = (
        f"transformers {version()} computes the same logits from it: on {found.tokens:,} tokens of "
        f"held-out text at most {found.largest:.1e} apart in float32 ({found.bound:.1e} is allowed)"
    )
    if dtype == torch.float32:
        return text + "."
    return text + (
        f", with the weights rounded to {_shown(dtype)}; computed in that format their loss is "
        f"{found.loss_there:.4f}, that of the weights as trained {found.loss:.4f}."
    )


def _card(
    run: str, runs: Path, trained: Trained, exported: Exported, checks: list[str], needs: str
) -> CardFacts:
    recipe, dataset = trained.recipe, trained.dataset
    segments = read_segments(open_run(run, runs))
    tokenizer = recipe.tokenizer
    kind = "the one given" if tokenizer.kind == "file" else tokenizer.kind
    return CardFacts(
        recipe=recipe,
        step=trained.step,
        parameters=sum(weight.numel() for weight in exported.model.parameters()),
        family=exported.family.model_type,
        sources=[(s.name, s.weight, s.train.num_tokens) for s in dataset.sources],
        tokenizer=f"{kind}, {dataset.vocab_size:,} tokens",
        weights=segments[0].weights if segments else {},
        checks=checks,
        needs=needs,
    )


def size_in_words(folder: Path) -> str:
    """Bytes and files of a folder."""
    files = [path for path in folder.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return f"{short_bytes(size)} in {short_count(len(files))} files"


def _shown(dtype: torch.dtype) -> str:
    return {own: name for name, own in DTYPES.items()}.get(dtype, str(dtype))
