import torch
from torch import nn

from longhaul.train.sampling import sample_tokens


class Counting(nn.Module):
    """Always finds the number after the last one likeliest, the one after that next."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, tokens_BT.size(1))
        logits = torch.zeros(1, tokens_BT.size(1), 10)
        last = int(tokens_BT[0, -1])
        logits[0, -1, (last + 1) % 10] = 3.0
        logits[0, -1, (last + 2) % 10] = 2.0
        return logits


def draw(model: Counting, **changed: object) -> list[int]:
    given = {
        "most_tokens": 8, "context": 4, "temperature": 0.0, "top_k": 0, "seed": 1,
        "device": torch.device("cpu"),
    }  # fmt: skip
    return list(sample_tokens(model, [0], **(given | changed)))  # type: ignore[arg-type]


def test_temperature_0_takes_the_likeliest_and_the_context_is_never_exceeded() -> None:
    model = Counting()
    assert draw(model) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert model.longest == 4


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
