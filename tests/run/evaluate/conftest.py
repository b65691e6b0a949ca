"""A model that was never trained, of bytes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.data.tokenizing import ByteTokenizer
from longhaul.model.initialise import build
from longhaul.run.trained import Trained
from run_evaluate import CONTEXT


@pytest.fixture(scope="session")
def trained() -> Trained:
    recipe = load_recipe(
        "drill",
        ["model.width=16", "model.layers=1", f"model.context={CONTEXT}", "batch.stages=[]",
         f"batch.sequence_length={CONTEXT}", "precision.compute=float32"],
    ).recipe  # fmt: skip
    tokenizer = ByteTokenizer(True)
    model = build(recipe.model, tokenizer.vocab_size, 1, torch.device("cpu"), tokenizer.end_of_text)
    with torch.no_grad():  # so that some bytes are likelier than others
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    dataset = cast(Any, SimpleNamespace(tokenizer=tokenizer))
    return Trained(model.eval(), dataset, recipe, torch.device("cpu"), 7)
