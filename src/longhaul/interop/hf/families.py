"""All families, and which one a model is."""

from longhaul.config.model import ModelSection
from longhaul.core.errors import DataError
from longhaul.interop.hf.family import Family
from longhaul.interop.hf.gemma import GEMMA2
from longhaul.interop.hf.gpt2 import GPT2, OPT
from longhaul.interop.hf.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from longhaul.interop.hf.neox import GPT_NEOX
from longhaul.interop.hf.own import OWN

STOCK = (OPT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GPT_NEOX)
"""Those that transformers has a class for, in the order in which one is chosen."""
FAMILIES = (*STOCK, OWN)


def family_for(model: ModelSection) -> Family:
    """The family that a trained model is exported as: `OWN` where no other has its switches."""
    return next(family for family in FAMILIES if not family.refused(model))


def nearest_to(model: ModelSection) -> tuple[Family, list[str]]:
    """The family of a class of transformers that lacks the fewest of a model's switches, and these,
    as `model.name = value`.
    """
    lacking = [(family, family.refused(model)) for family in STOCK]
    return min(lacking, key=lambda pair: len(pair[1]))


def family_of(model_type: str, file: str) -> Family:
    """The family of a published model; DataError if it cannot be imported."""
    known = {family.model_type: family for family in FAMILIES if family.settings is not None}
    if model_type not in known:
        raise DataError(
            f"{file}: model_type: {model_type!r} is not a family that longhaul imports",
            f"it imports {', '.join(known)}",
        )
    return known[model_type]
