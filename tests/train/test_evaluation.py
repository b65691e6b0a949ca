"""Validation loss within the memory that training has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.train import PrecisionSection
from longhaul.core.records import Event
from longhaul.data.dataset import Dataset
from longhaul.model import gpt
from longhaul.model.initialise import build
from longhaul.train import evaluation
from longhaul.train.allocation_errors import TooMuchEvaluated
from longhaul.train.evaluation import Evaluation, evaluate
from longhaul.train.memory import LiveBytes
from longhaul.train.trainer import Trainer

CPU, FLOAT32 = torch.device("cpu"), PrecisionSection(compute="float32")


def tiny(dataset: Dataset) -> gpt.GPT:
    options = ["model.width=16", "model.layers=1", "model.context=32", "batch.stages=[]"]
    return build(load_recipe("drill", options).recipe.model, dataset.vocab_size, 1)


@contextmanager
def short_of_memory(model: torch.nn.Module, above: int) -> Iterator[list[int]]:
    """Sequences of every pass; those of more than `above` are refused."""
    seen: list[int] = []

    def refuse(_: object, given: tuple[Any, ...]) -> None:
        seen.append(len(given[0]))
        if len(given[0]) > above:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 33.00 GiB.")

    hook = model.register_forward_pre_hook(refuse)
    yield seen
    hook.remove()


def read(model: gpt.GPT, dataset: Dataset, sequences: int) -> Evaluation:
    return evaluate(model, dataset, CPU, FLOAT32, 32, sequences, 1024)


@pytest.mark.parametrize("name", shipped_recipes())
def test_an_evaluation_computes_no_more_at_once_than_training(name: str) -> None:
    options = ["batch.micro_sequences=1"] if name == "drill" else []
    recipe = load_recipe(name, options).recipe
    for stage in recipe.batch_stages():
        sequences = recipe.evaluated_at_once(stage.from_step)
        trained = recipe.micro_sequences(stage.from_step) * stage.sequence_length
        assert sequences == 1 or sequences * recipe.model.context <= trained


def test_a_rank_evaluates_no_more_at_once_than_its_own_share_of_a_batch() -> None:
    recipe = load_recipe("quickstart").recipe
    assert [recipe.evaluated_at_once(0, ranks) for ranks in (1, 4, 5, 64)] == [16, 4, 4, 1]


def test_what_is_evaluated_at_once_is_bounded_however_large_a_batch_is() -> None:
    options = ["batch.sequences=4096", "evaluation.sequences=4096"]
    recipe = load_recipe("quickstart", options).recipe
    assert recipe.evaluated_at_once(0) * recipe.model.context == 65_536


def test_the_loss_is_that_of_whole_logits_which_never_are_there(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(dataset).eval()
    torch.nn.init.normal_(model.tokens.weight)
    tokens_BT = torch.arange(8 * 33).view(8, 33) % dataset.vocab_size
    whole = model(tokens_BT[:, :-1], tokens_BT[:, 1:]).detach()
    monkeypatch.setattr(gpt, "LOGITS_AT_ONCE", 10 * dataset.vocab_size)
    live = LiveBytes()
    with torch.no_grad(), live:
        chunked = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
    assert float(chunked) == pytest.approx(float(whole), rel=1e-6)
    assert live.peak < 4 * tokens_BT.numel() * dataset.vocab_size


@pytest.mark.parametrize("fits", [1, 3, 5])
def test_where_memory_runs_out_half_as_many_are_read_at_once_and_the_loss_is_the_same(
    dataset: Dataset, fits: int
) -> None:
    model = tiny(dataset)
    undisturbed = read(model, dataset, 8)
    with short_of_memory(model, fits) as seen:
        short = read(model, dataset, 8)
    assert undisturbed.at_once == 8
    assert short.at_once == {1: 1, 3: 2, 5: 4}[fits]
    assert short.tokens == undisturbed.tokens
    assert short.loss == pytest.approx(undisturbed.loss, rel=1e-6)
    assert sum(count for count in seen if count <= fits) * 32 == short.tokens
    refused = [count for count in seen if count > fits]
    assert refused == [8, 4, 2][: len(refused)]  # never tried again what did not fit


def test_what_one_sequence_is_refused_cannot_be_halved(dataset: Dataset) -> None:
    model = tiny(dataset)
    with short_of_memory(model, 0), pytest.raises(TooMuchEvaluated, match=r"33\.00 GiB") as told:
        read(model, dataset, 2)
    assert told.value.sequences == 1


def test_where_attention_is_compiled_for_every_shape_batches_have_one(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(dataset)
    plain = read(model, dataset, 7)
    monkeypatch.setattr(evaluation, "flex_attends", lambda *_: True)
    with short_of_memory(model, 5) as seen:
        whole = read(model, dataset, 7)
    assert set(seen) == {7, 3}
    assert whole.tokens == plain.tokens
    assert whole.loss == pytest.approx(plain.loss, rel=1e-6)


def test_other_errors_pass(dataset: Dataset) -> None:
    model = tiny(dataset)
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read(model, dataset, 2)


def test_what_did_not_fit_is_told_and_not_tried_again(make_trainer: Any) -> None:
    trainer: Trainer = make_trainer("train.steps=10", "batch.micro_sequences=8")
    with short_of_memory(trainer.training_step.model, 2) as seen:
        trainer.training_step.model.train()
        events = []
        for _ in range(2):
            events += [e for e in trainer.evaluate(256) if isinstance(e, Event)]
    told = [event.data for event in events if event.kind == "evaluation"]
    assert [(data["at_once"], data["did_not_fit"]) for data in told] == [(2, 4), (2, 4)]
    assert seen.count(4) == 1
