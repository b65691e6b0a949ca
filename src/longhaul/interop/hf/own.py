"""Family `longhaul`: a model of any switches, which longhaul itself computes, through a small file
of code that its folder brings.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from longhaul import __version__
from longhaul.config.model import ModelSection
from longhaul.core.errors import DataError
from longhaul.interop.hf.family import ALWAYS, PLAIN, Family, Values
from longhaul.interop.hf.places import Layout, Place
from longhaul.interop.hf.published import OWN as OWN_TYPE
from longhaul.interop.hf.published import Published

CODE = Path(__file__).with_name("modeling_longhaul.py")
"""Copied into a folder as it is. Nothing but `transformers` ever runs the copy."""
_PREFIX = "model."


def _config(model: ModelSection) -> Values:
    # Rows of padding stay here.
    settings = model.model_copy(update={"vocab_multiple": 1}).model_dump(mode="json")
    return {
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.LonghaulConfig",
            "AutoModelForCausalLM": f"{CODE.stem}.LonghaulForCausalLM",
        },
        "longhaul_version": __version__, "model": settings,
        # What programs ask any model for.
        "hidden_size": model.width, "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads, "max_position_embeddings": model.context,
    }  # fmt: skip


def _settings(theirs: Published) -> Values:
    table = theirs.table("model")
    table.must_be("vocab_multiple", 1)
    try:
        # As JSON has it: a list of stages is a tuple of ours.
        model = ModelSection.model_validate_json(json.dumps(table.values))
    except ValidationError as error:
        raise DataError(
            f"{table.file}: no model of longhaul {__version__} is like that ({_said(error)})",
            "import it with the longhaul that longhaul_version names there, or download it again",
        ) from None
    return model.model_dump(mode="python", exclude={"vocab_multiple"})


def _said(error: ValidationError) -> str:
    """The first problem, on one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return " ".join(f"{where}: {first['msg']}".split())[:200]


def _layout(model: ModelSection) -> Layout:
    import torch

    from longhaul.model.gpt import GPT

    layout = Layout(model)
    with torch.device("meta"):
        names = [name for name, _ in GPT(model, vocab_size=1, end_of_text=0).named_parameters()]
    layout.places |= {name: Place((_PREFIX + name,)) for name in names}
    return layout


OWN = Family(
    OWN_TYPE, "LonghaulForCausalLM", dict.fromkeys((*ALWAYS, *PLAIN), ...),
    _config, _layout, _settings, _PREFIX,
)  # fmt: skip
