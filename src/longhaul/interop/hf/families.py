"""All families, and which one a model is."""

from longhaul.config.model import ModelSection
from longhaul.core.errors import DataError, UsageError
from longhaul.interop.hf.family import Family
from longhaul.interop.hf.gemma import GEMMA2
from longhaul.interop.hf.gpt2 import GPT2, OPT
from longhaul.interop.hf.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from longhaul.interop.hf.neox import GPT_NEOX

FAMILIES = (OPT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GPT_NEOX)
"""In the order in which one is chosen."""


def family_for(model: ModelSection) -> Family:
    """The family that a trained model is exported as; UsageError names the switches in the way."""
    refused = [(family, family.refused(model)) for family in FAMILIES]
    for family, switches in refused:
        if not switches:
            return family
    nearest, switches = min(refused, key=lambda pair: len(pair[1]))
    raise UsageError(
        f"no class of transformers has this model's switches; the nearest, {nearest.model_type}, "
        f"lacks {', '.join(switches)}",
        "docs/interop.md lists what each class has; `longhaul sample` and `eval` need no class",
    )


def family_of(model_type: str, file: str) -> Family:
    """The family of a published model; DataError if it cannot be imported."""
    known = {family.model_type: family for family in FAMILIES if family.settings is not None}
    if model_type not in known:
        raise DataError(
            f"{file}: model_type: {model_type!r} is not a family that longhaul imports",
            f"it imports {', '.join(known)}",
        )
    return known[model_type]
