import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from longhaul.run.evaluate.scorer import Scorer, Wanted, Window, windows_of, write
from longhaul.train.sampling import sample_tokens
from run_evaluate import CONTEXT, nats_of


@given(some.integers(1, 40), some.integers(0, 45), some.integers(1, 12))
def test_windows_score_each_token_once_behind_what_precedes_it(length, scored, context) -> None:
    tokens = list(range(length))
    windows = list(windows_of(tokens, scored, context))
    foretold = [token for window in windows for token in window.tokens[-window.scored :]]
    assert foretold == tokens[max(1, length - scored) :]
    for window in windows:
        assert list(window.tokens) == tokens[window.tokens[0] : window.tokens[-1] + 1]
        assert window.scored < len(window.tokens) <= context + 1
    if windows:  # the last one has all the context there is
        assert len(windows[-1].tokens) == min(length, context + 1)


def test_scores_are_those_of_each_token_alone_however_windows_share_batches(
    trained, monkeypatch
) -> None:
    chance = torch.Generator().manual_seed(1)
    windows = [
        Window(tuple(torch.randint(0, 256, (length,), generator=chance).tolist()), scored)
        for length, scored in [(2, 1), (9, 8), (5, 1), (9, 3), (3, 2), (1, 0), (7, 4)]
    ]
    for at_once in (1, 20 * 257, 1 << 25):
        monkeypatch.setattr("longhaul.run.evaluate.scorer.LOGITS_AT_ONCE", at_once)
        for window, score in zip(windows, Scorer(trained).score(windows), strict=True):
            ends = range(len(window.tokens) - window.scored + 1, len(window.tokens) + 1)
            alone = [nats_of(trained, list(window.tokens[:end])) for end in ends]
            assert score.nats == pytest.approx(sum(nats for nats, _ in alone), rel=1e-5)
            assert score.greedy == all(greedy for _, greedy in alone)


def test_what_is_written_is_what_sampling_writes_alone(trained) -> None:
    tokenizer = trained.dataset.tokenizer
    prompts = [b"ab", b"xy", b"a long one, beyond the context", b"q"]
    wanted = [Wanted(tuple(prompt), (), 12) for prompt in prompts]
    for text, prompt in zip(write(trained, wanted), prompts, strict=True):
        alone = sample_tokens(
            trained.model, list(prompt), most_tokens=12, context=CONTEXT, temperature=0.0, top_k=0,
            seed=1, device=trained.device, end_of_text=tokenizer.end_of_text,
        )  # fmt: skip
        assert text == tokenizer.decode(alone)


def test_writing_ends_before_the_first_of_the_texts_named(trained) -> None:
    (whole,) = write(trained, [Wanted(tuple(b"ab"), (), 12)])
    stop = whole[3:5]
    (cut,) = write(trained, [Wanted(tuple(b"ab"), ("never in it", stop), 12)])
    assert cut == whole[: whole.index(stop)]
