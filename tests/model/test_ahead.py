"""Multi-token prediction: what `model.ahead_stages` asks of the logits, and when."""

import pytest
import torch
from torch.nn import functional

from longhaul.config import model as config
from longhaul.config.model import ModelSection
from longhaul.model.gpt import GPT
from longhaul.model.head import IGNORED_TARGET, further_targets
from longhaul.model.initialise import build

END, VOCAB, LENGTH = 0, 13, 12
SHAPE = {"layers": 1, "heads": 2, "width": 16, "context": LENGTH, "document_mask": True}
STAGES = ({"from_step": 0, "weights": (0.5, 0.25)}, {"from_step": 3, "weights": ()})


def model_of(**changes: object) -> GPT:
    return build(ModelSection.model_validate(SHAPE | changes), VOCAB, 0, end_of_text=END)


def some_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences with documents that end at other places, the last one with padding at its end."""
    tokens = torch.randint(1, VOCAB, (3, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    tokens[0, 5], tokens[1, 1], tokens[1, 9] = END, END, END
    targets = tokens[:, 1:].clone()
    targets[2, -3:] = IGNORED_TARGET
    return tokens[:, :-1], targets


def gradients(model: GPT, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_no_token_is_asked_for_beyond_its_document() -> None:
    targets = torch.tensor([[4, 5, END, 6, 7, 8, IGNORED_TARGET]])
    (_, second), (_, third) = further_targets(targets, (0.5, 0.25), END)
    none = IGNORED_TARGET
    assert second.tolist() == [[5, END, none, 7, 8, none, none]]
    assert third.tolist() == [[END, none, none, 8, none, none, none]]
    ((_, second),) = further_targets(targets, (0.5,), None)
    assert second.tolist() == [[5, END, 6, 7, 8, none, none]]


@pytest.mark.parametrize("capped", [{}, {"logit_softcap": 5.0, "vocab_multiple": 8}])
@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_are_those_of_all_losses_and_the_loss_is_the_next_tokens(
    monkeypatch: pytest.MonkeyPatch, chunks: bool, capped: dict[str, object]
) -> None:
    if chunks:
        monkeypatch.setattr(config, "CHUNK_ON_CPU", 64)
        monkeypatch.setattr(config, "_FEWEST_ROWS", 4)
    tokens, targets = some_batch()
    plain, model = model_of(**capped), model_of(**capped, ahead_stages=STAGES)
    expected = plain(tokens, targets)
    loss = model(tokens, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for weight, after in further_targets(targets, (0.5, 0.25), END):
        logits = plain(tokens).flatten(0, 1)
        expected = expected + weight * functional.cross_entropy(
            logits, after.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )
    for ours, theirs in zip(gradients(model, loss), gradients(plain, expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_stages_follow_each_other_and_evaluation_knows_none() -> None:
    model, settings = (
        model_of(ahead_stages=STAGES),
        ModelSection.model_validate(SHAPE | {"ahead_stages": STAGES}),
    )
    assert [settings.ahead_at(step) for step in (0, 2, 3, 9)] == [(0.5, 0.25)] * 2 + [()] * 2
    assert model.ahead == (0.5, 0.25)
    tokens, targets = some_batch()
    with_stage = gradients(model, model.eval()(tokens, targets))
    model.train().ahead = ()
    for one, other in zip(with_stage, gradients(model, model(tokens, targets)), strict=True):
        assert torch.equal(one, other)
