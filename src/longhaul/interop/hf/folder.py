"""A trained model as a folder that `transformers` loads as it is: `config.json`, safetensors with
an index where there are several, settings of generation, the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.files import write_bytes, write_json
from longhaul.core.units import Bytes
from longhaul.data.tokenizing import NumberTokenizer, Tokenizer
from longhaul.interop.hf.family import Family
from longhaul.interop.hf.own import CODE, OWN
from longhaul.interop.hf.published import NAME
from longhaul.interop.hf.weights import INDEX, SINGLE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from longhaul.model.gpt import GPT

SHARD_BYTES: Bytes = 5_000_000_000
"""Of one file of weights, at most, as `transformers` cut them for years."""
_SENTENCEPIECE_CLASS = "LlamaTokenizer"
_OF_SENTENCEPIECE = ("llama", "mistral", OWN.model_type)
"""Families beside whose models a class of tokenizers reads a `tokenizer.model`."""


@dataclass(frozen=True)
class Exported:
    """What a folder is made of."""

    model: GPT
    family: Family
    recipe: Recipe
    tokenizer: Tokenizer
    dtype: torch.dtype
    """Of its weights in the files."""


def write_folder(folder: Path, exported: Exported, shard_bytes: Bytes = SHARD_BYTES) -> None:
    """Fill an empty folder, all but the card; UsageError if the family reads no such tokenizer."""
    _write_tokenizer(folder, exported)
    end, begin = exported.tokenizer.end_of_text, exported.tokenizer.begin_of_text
    borders = {"bos_token_id": end if begin is None else begin, "eos_token_id": end}
    config = _config(exported) | borders
    generation = borders | _generation(exported.recipe)
    if exported.family is OWN:
        write_bytes(folder / CODE.name, CODE.read_bytes())
        config |= {"end_of_text": end}
        generation |= {"use_cache": False}  # it has none
    write_json(folder / NAME, config)
    write_json(folder / "generation_config.json", generation)
    _write_weights(folder, exported, shard_bytes)


def _config(exported: Exported) -> dict[str, Any]:
    family, model = exported.family, exported.recipe.model
    return {
        "model_type": family.model_type,
        "architectures": [family.architecture],
        "vocab_size": exported.model.vocab_size,
        "tie_word_embeddings": model.tied_head,
        # Their word for it, in versions before 5 and after.
        "torch_dtype": str(exported.dtype).removeprefix("torch."),
        # A token that pads would get no gradient in some classes.
        "pad_token_id": None,
    } | family.config(model)


def _generation(recipe: Recipe) -> dict[str, Any]:
    sample = recipe.sample
    settings: dict[str, Any] = {"do_sample": False}
    if sample.temperature:
        settings |= {"do_sample": True, "temperature": sample.temperature, "top_k": sample.top_k}
    return settings


def _write_tokenizer(folder: Path, exported: Exported) -> None:
    tokenizer = exported.tokenizer
    if isinstance(tokenizer, NumberTokenizer):
        return  # it stands for one that is not at hand
    is_json = tokenizer.file_name.endswith(".json")
    if not is_json and exported.family.model_type not in _OF_SENTENCEPIECE:
        raise UsageError(
            "the tokenizer is a SentencePiece model, and no class of transformers reads one beside "
            f"models of family {exported.family.model_type}",
            f"those of {', '.join(_OF_SENTENCEPIECE)} do, whose switches the model would need",
        )
    write_bytes(folder / tokenizer.file_name, tokenizer.content())
    end, begin = (
        None if token is None else tokenizer.name_of(token)
        for token in (tokenizer.end_of_text, tokenizer.begin_of_text)
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast" if is_json else _SENTENCEPIECE_CLASS,
        "model_max_length": exported.recipe.model.context,
        "bos_token": begin or end, "eos_token": end,
        "model_input_names": ["input_ids", "attention_mask"],
        # Else it would put tokens before a text that training never saw there, and take spaces out
        # of what it decodes.
        "add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False,
    } | ({} if is_json else {"legacy": False})  # fmt: skip
    write_json(folder / "tokenizer_config.json", settings)


def has_tokenizer(tokenizer: Tokenizer) -> bool:
    """Whether a folder holds it: numbers stand for one that is not at hand."""
    return not isinstance(tokenizer, NumberTokenizer)


def their_tensors(exported: Exported) -> Iterator[tuple[str, Tensor]]:
    """(their name, contiguous CPU tensor) of every weight, one after the other."""
    import torch

    model, settings = exported.model, exported.recipe.model
    layout = exported.family.layout(settings)
    for name, weight in model.named_parameters():
        ours = weight.detach().cpu()
        if name in ("tokens.weight", "head.weight") or name.startswith("value_tables."):
            ours = ours[: model.vocab_size]  # rows of padding are never predicted
        for theirs, tensor in layout.places[name].to_theirs(ours):
            yield theirs, tensor.to(exported.dtype)
    for theirs, constant in layout.constants.items():
        yield theirs, torch.full(constant.shape, constant.value, dtype=exported.dtype)


def _write_weights(folder: Path, exported: Exported, shard_bytes: Bytes) -> None:
    names: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0
    for name, tensor in their_tensors(exported):
        if held and sum(each.nbytes for each in held.values()) + tensor.nbytes > shard_bytes:
            names.append(_write_shard(folder, len(names), held))
            held = {}
        held[name] = tensor
        total += tensor.nbytes
    names.append(_write_shard(folder, len(names), held))
    if len(names) == 1:
        (folder / _part(0)).rename(folder / SINGLE)
        return
    table: dict[str, str] = {}
    for number, own in enumerate(names):
        file = f"model-{number + 1:05}-of-{len(names):05}.safetensors"
        (folder / _part(number)).rename(folder / file)
        table |= dict.fromkeys(own, file)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": table})


def _write_shard(folder: Path, number: int, tensors: Mapping[str, Tensor]) -> list[str]:
    from longhaul.checkpoint.tensor_file import write_tensor_file

    # Older versions of transformers refuse a file that does not say whose format it is.
    write_tensor_file(folder / _part(number), tensors, {"format": "pt"})
    return list(tensors)


def _part(number: int) -> str:
    return f"part-{number}"
