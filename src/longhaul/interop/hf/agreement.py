"""Whether `transformers` computes from a folder what our model computes, on real text.

Shape suffixes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.core.errors import DataError, UsageError
from longhaul.core.units import Nats
from longhaul.interop.hf.own import CODE
from longhaul.interop.hf.weights import PublishedWeights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from longhaul.data.tokenizing import Tokenizer
    from longhaul.interop.hf.folder import Exported
    from longhaul.model.embedding import RotaryPositions

BOUND = 1e-4
"""Largest difference of two logits, both computed in float32, where logits differ among themselves
by about 1; in proportion to their standard deviation where that is larger."""
LOSS_BOUND: Nats = 0.02
"""Largest difference of the mean loss, theirs computed as it is and in the format of the files."""
_ANGLE_ERROR = 2.0**-19
"""Of a cosine or sine at each position: a power in float32, times the position."""
_AGAIN = "report it with the recipe: the folder was not written"


@dataclass(frozen=True)
class Agreement:
    """How far two models agree."""

    tokens: int
    largest: float
    """Difference of two logits, both models in float32 with the weights of the files."""
    bound: float
    """That `largest` had to stay within."""
    loss: Nats
    """Mean of the next token, ours, with the weights as they were trained."""
    loss_there: Nats
    """Theirs, in the format of the files."""


def refuse_without_transformers() -> None:
    """UsageError where the library is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(
            "transformers is not installed, and nothing is exported that it has not read back",
            'install it: pip install "longhaul[hf]"',
        )


def load_theirs(folder: Path, dtype: torch.dtype) -> Any:
    """Their model in a folder that was exported here, ready to evaluate, its weights in this
    format; a folder's own code is run. DataError if it lacks weights, or has others.
    """
    transformers = _library()
    # Told, not converted to: their angles stay float32 then.
    own_code = (folder / CODE.name).is_file()
    with _naming("model"), _copies_of_code():
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            local_files_only=True,
            dtype=dtype,
            trust_remote_code=own_code,
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := found.get(kind):
            said = ", ".join(sorted(map(str, names))[:3])
            raise DataError(f"transformers reads the weights otherwise: {kind} {said}", _AGAIN)
    return model.eval()


def compare(folder: Path, exported: Exported, tokens_BT: Tensor) -> Agreement:
    """Compare the model in a folder with ours on a text; DataError if they do not agree.

    Args:
        folder: written by `folder.write_folder`.
        exported: with our model on the CPU, in float32; its logits are compared with its weights
            as they are read back from the files, and it has its own again afterwards.
        tokens_BT: a few windows of text, no longer than the context.
    """
    import torch

    theirs, model = load_theirs(folder, exported.dtype), exported.model
    with torch.no_grad():
        loss = _loss(model(tokens_BT), tokens_BT)
        loss_there = _loss(theirs(tokens_BT).logits.float(), tokens_BT)
        if model.rotary is not None:
            _exchange_angles(theirs, model.rotary)
        kept = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        _read_back(folder, exported)
        ours_BTV, there_BTV = model(tokens_BT), theirs.float()(tokens_BT).logits
        for name, weight in model.named_parameters():
            weight.copy_(kept[name])
    largest = float((ours_BTV - there_BTV).abs().max())
    bound = BOUND * max(1.0, float(ours_BTV.std()))
    found = Agreement(tokens_BT.numel(), largest, bound, loss, loss_there)
    if not largest <= bound:
        raise DataError(
            f"transformers computes other logits from the export: {largest:.3g} apart, where "
            f"{bound:.3g} is allowed",
            _AGAIN,
        )
    if not abs(loss_there - loss) <= LOSS_BOUND:
        raise DataError(
            f"the loss is {loss_there:.4f} there, in {str(exported.dtype).removeprefix('torch.')}, "
            f"instead of {loss:.4f}: more than {LOSS_BOUND} apart",
            "export it in float32 (--dtype float32), or report it with the recipe",
        )
    return found


def _exchange_angles(theirs: Any, rotary: RotaryPositions) -> None:
    """Let theirs rotate by our angles, which are exact, once they are seen to be its own but for
    the rounding of float32: at long contexts that alone would part the logits.
    """
    import torch

    half = rotary.sin_TK.size(1) // 2
    cos_TK = rotary.cos_TK
    sin_TK = torch.cat((rotary.sin_TK[:, half:], rotary.sin_TK[:, half:]), dim=1)

    def exchange(module: Any) -> None:
        own = module.forward

        def forward(x: Tensor, position_ids: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            positions_BT1 = position_ids[..., None] + 1
            ours = cos_TK[position_ids], sin_TK[position_ids]
            for one, other in zip(own(x, position_ids, *rest), ours, strict=True):
                apart = ((one.float() - other).abs() / positions_BT1).max()
                if not apart <= _ANGLE_ERROR:
                    raise DataError("transformers rotates queries by other angles", _AGAIN)
            return ours

        module.forward = forward

    for module in theirs.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            exchange(module)


def _read_back(folder: Path, exported: Exported) -> None:
    weights = PublishedWeights(folder, exported.family.prefix)
    places = exported.family.layout(exported.recipe.model).places
    for name, weight in exported.model.named_parameters():
        whole = places[name].to_ours(weights.read)
        weight[: len(whole)].copy_(whole)


def compare_tokenizers(folder: Path, ours: Tokenizer, text: str) -> None:
    """DataError unless `AutoTokenizer` makes of a text the same tokens, and the text of them."""
    transformers = _library()
    with _naming("tokenizer"):
        # Told nothing of code, it would ask whoever sits there whether to run a model's.
        theirs = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    wanted = [int(number) for number in ours.encode(text)]
    found = theirs(text, add_special_tokens=False)["input_ids"]
    if found != wanted:
        places = (
            n for n, pair in enumerate(zip(found, wanted, strict=False)) if len(set(pair)) > 1
        )
        at = next(places, min(len(found), len(wanted)))
        raise DataError(
            f"transformers' tokenizer makes other tokens of a text, from token {at:,} on: "
            f"{found[at : at + 4]} instead of {wanted[at : at + 4]}",
            "it cannot be exported as it is; take a tokenizer.json for the next run",
        )
    if theirs.eos_token_id != ours.end_of_text:
        raise DataError(
            f"transformers' tokenizer ends a text with token {theirs.eos_token_id} instead of "
            f"{ours.end_of_text}",
            _AGAIN,
        )


@contextmanager
def _copies_of_code() -> Iterator[None]:
    """A folder's code is copied before it is run: of one that gets its name later no copy stays."""
    from transformers import dynamic_module_utils as theirs

    kept, path, modules = theirs.HF_MODULES_CACHE, list(sys.path), set(sys.modules)
    with tempfile.TemporaryDirectory() as place:
        theirs.HF_MODULES_CACHE = place
        try:
            yield
        finally:
            theirs.HF_MODULES_CACHE, sys.path[:] = kept, path
            for name in set(sys.modules) - modules:
                if name.startswith("transformers_modules."):
                    del sys.modules[name]  # another folder of this name would get it


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Their errors are of many kinds, and of no use to somebody who exports."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what else is installed, and does not suit it
    try:
        yield
    except Exception as error:
        said = str(error).strip().splitlines()
        kind = f"{type(error).__name__}: {said[-1].strip() if said else ''}"[:200]
        raise DataError(
            f"transformers {version()} cannot load the exported {what} ({kind})",
            "another version may; longhaul is tried with transformers 5",
        ) from error
    finally:
        logging.disable(level)


def version() -> str:
    """Of transformers."""
    return str(_library().__version__)


def _loss(logits_BTV: Tensor, tokens_BT: Tensor) -> Nats:
    from torch.nn import functional

    return float(
        functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten())
    )


def _library() -> Any:
    import transformers

    library: Any = transformers
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library
