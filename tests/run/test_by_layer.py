"""A model whose weights stay in their files computes what the same model computes in memory."""

import shutil
from pathlib import Path

import pytest
import torch

from longhaul.run import by_layer
from longhaul.run.trained import Trained, open_trained
from longhaul.store.manifest import RefusedCheckpoint


@pytest.fixture
def whole(sent: Path) -> Trained:
    return open_trained("drill", sent, 4, by_layer=False)


@pytest.fixture
def read(sent: Path, tmp_path: Path) -> Trained:
    shutil.copytree(sent / "drill", tmp_path / "drill")
    return open_trained("drill", tmp_path, 4, by_layer=True)


def in_memory(trained: Trained) -> list[bool]:
    """Whether the weights of each block are."""
    return [all(not p.is_meta for p in block.parameters()) for block in trained.model.blocks]


def test_losses_and_texts_are_the_same(whole: Trained, read: Trained) -> None:
    tokens_BT = torch.arange(40).view(2, 20)
    with torch.inference_mode():
        assert torch.equal(read.model(tokens_BT), whole.model(tokens_BT))
    # More sequences are computed at once, so that sums are made in another order.
    assert read.evaluate().loss == pytest.approx(whole.evaluate().loss, rel=1e-6)
    assert list(read.write("ab", 12, temperature=0)) == list(whole.write("ab", 12, temperature=0))


def test_no_more_than_one_block_is_ever_in_memory(read: Trained) -> None:
    seen = []
    for block in read.model.blocks:
        block.mlp.register_forward_hook(lambda *_: seen.append(in_memory(read)))
    with torch.inference_mode():
        read.model(torch.zeros(1, 4, dtype=torch.int64))
    assert seen == [[True, False, False], [False, True, False], [False, False, True]]
    assert in_memory(read) == [False] * 3


def test_files_that_are_gone_meanwhile_are_an_error(read: Trained, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "drill" / "checkpoints" / "step-4")
    with pytest.raises(RefusedCheckpoint):
        read.evaluate()


def test_a_model_that_does_not_fit_is_read_by_layer(sent: Path, monkeypatch) -> None:
    class Memory:
        available = 1000
        total = 1 << 40

    monkeypatch.setattr(by_layer.psutil, "virtual_memory", lambda: Memory)
    trained = open_trained("drill", sent, 4)
    assert in_memory(trained) == [False] * 3
    Memory.available = 1 << 30
    assert in_memory(open_trained("drill", sent, 4)) == [True] * 3
