import pytest
import torch
from torch import nn

from longhaul.config.model import ModelSection
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.train.sampling import sample_tokens


class Lengths:
    """A cache that only counts."""

    def __init__(self) -> None:
        self.length = 0


class Counting(nn.Module):
    """Always finds the number after the last one likeliest, the one after that next."""

    def __init__(self) -> None:
        super().__init__()
        self.skips_masked = True
        self.passes: list[tuple[int, int]] = []

    def new_cache(self, batch: int) -> Lengths:
        return Lengths()

    def forward(self, tokens_BT: torch.Tensor, cache: Lengths | None = None) -> torch.Tensor:
        new = tokens_BT.size(1)
        history = cache.length if cache is not None else 0
        if cache is not None:
            cache.length += new
        self.passes.append((history, new))
        logits = torch.zeros(1, new, 10)
        last = int(tokens_BT[0, -1])
        logits[0, -1, (last + 1) % 10] = 3.0
        logits[0, -1, (last + 2) % 10] = 2.0
        return logits


def draw(model: nn.Module, prompt: tuple[int, ...] = (0,), **changed: object) -> list[int]:
    given = {
        "most_tokens": 8, "context": 4, "temperature": 0.0, "top_k": 0, "seed": 1,
        "device": torch.device("cpu"),
    }  # fmt: skip
    return list(sample_tokens(model, prompt, **(given | changed)))  # type: ignore[arg-type]


def test_temperature_0_takes_the_likeliest_and_the_context_is_never_exceeded() -> None:
    model = Counting()
    assert draw(model) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert max(history + new for history, new in model.passes) == 4


def test_each_token_is_read_once_until_the_text_outgrows_the_context() -> None:
    model = Counting()
    draw(model, prompt=(8, 9), most_tokens=6)
    assert model.passes == [(0, 2), (2, 1), (3, 1), (0, 4), (0, 4), (0, 4)]


class Forgetful(nn.Module):
    """A model that reads the whole text again for every token."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.skips_masked = True
        self.model, self.read = model, torch.zeros(1, 0, dtype=torch.int64)

    def new_cache(self, batch: int) -> Lengths:
        return Lengths()

    def forward(self, tokens_BT: torch.Tensor, cache: Lengths | None = None) -> torch.Tensor:
        if cache is None:
            return self.model(tokens_BT)
        self.read = torch.cat((self.read, tokens_BT), dim=1)
        cache.length += tokens_BT.size(1)
        return self.model(self.read)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"positions": "learned", "norm": "layernorm", "bias": True},
        {"kv_heads": 1, "window": 3, "window_full_every": 2, "document_mask": True},
        {"value_residual": True, "value_embeddings": 1, "input_mix": True, "bigram_rows": 50},
    ],
)
def test_the_text_is_the_same_as_if_all_were_read_again(switches) -> None:
    shape = {"layers": 2, "heads": 2, "width": 16, "context": 12}
    settings = ModelSection.model_validate(shape | switches)
    model = build(settings, 21, seed=0, end_of_text=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(0))
    how = {"most_tokens": 20, "context": 12, "temperature": 1.5}
    written = draw(model, (5, 3, 8), **how)
    assert len(written) == 20
    assert len(set(written)) > 2
    assert written == draw(Forgetful(model), (5, 3, 8), **how)


def test_the_end_of_text_ends_the_sample_and_is_not_shown() -> None:
    assert draw(Counting(), end_of_text=4) == [1, 2, 3]


def test_top_k_draws_from_nothing_else() -> None:
    drawn = draw(Counting(), temperature=5.0, top_k=2, most_tokens=200)
    steps = {(b - a) % 10 for a, b in zip([0, *drawn], drawn, strict=False)}
    assert steps == {1, 2}


def test_a_seed_decides_the_sample() -> None:
    hot = {"temperature": 9.0, "most_tokens": 30}
    assert draw(Counting(), seed=1, **hot) == draw(Counting(), seed=1, **hot)
    assert draw(Counting(), seed=1, **hot) != draw(Counting(), seed=2, **hot)


def test_a_model_in_training_is_in_training_again_afterwards() -> None:
    model = Counting().train()
    draw(model)
    assert model.training
    assert model.skips_masked
