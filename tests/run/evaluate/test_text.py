import json
import math
from pathlib import Path

import pytest
import torch

from longhaul.core.errors import DataError, UsageError
from longhaul.run.evaluate.text import text_loss
from longhaul.run.trained import Trained
from run_evaluate import CONTEXT, nats_of

TEXTS = ["to be or not to be", "ñ", "that is the question ☃"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def measured(trained: Trained, path: Path, **options: str):
    return text_loss(trained, str(path), path.parent / "downloads", print, **options)


def test_documents_are_foretold_one_by_one_behind_an_end_of_text(trained, file) -> None:
    nats = 0.0
    for text in TEXTS:
        tokens = [256, *text.encode()]
        for end in range(2, len(tokens) + 1):
            begin = CONTEXT * ((end - 2) // CONTEXT)
            if end - 2 >= CONTEXT * ((len(tokens) - 2) // CONTEXT):  # the last window
                begin = max(0, len(tokens) - 1 - CONTEXT)
            nats += nats_of(trained, tokens[begin:end])[0]
    loss = measured(trained, file)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert (loss.documents, loss.tokens, loss.num_bytes) == (3, num_bytes, num_bytes)
    assert loss.nats == pytest.approx(nats, rel=1e-5)
    assert loss.perplexity == pytest.approx(math.exp(nats / num_bytes), rel=1e-5)
    assert loss.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-5)


def test_what_nothing_precedes_is_not_foretold(trained, file, monkeypatch) -> None:
    tokenizer = trained.dataset.tokenizer
    monkeypatch.setattr(tokenizer, "end_of_text", None)
    loss = measured(trained, file)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert loss.tokens == num_bytes - len(TEXTS)


def test_a_model_that_knows_nothing_has_its_vocabulary_as_perplexity(trained, file) -> None:
    class Uniform(torch.nn.Module):
        vocab_size = 257

        def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tokens_BT.shape, 257)

    uniform = Trained(Uniform(), trained.dataset, trained.recipe, trained.device, 0)
    assert measured(uniform, file).perplexity == pytest.approx(257)


def test_texts_that_are_none_have_a_way_out(trained, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        measured(trained, tmp_path / "nothing.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match=r"empty\.txt"):
        measured(trained, tmp_path / "empty.txt")
    (tmp_path / "other.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(DataError, match="text"):
        measured(trained, tmp_path / "other.jsonl")
    assert measured(trained, tmp_path / "other.jsonl", text_field="body").tokens == 1
    (tmp_path / "t.bin").write_bytes(b"\0" * 2048)
    with pytest.raises((DataError, UsageError)):
        measured(trained, tmp_path / "t.bin")
