from pathlib import Path

import torch

from longhaul.checkpoint.storage import save_tensors
from longhaul.checkpoint.write import is_unsharded, save_unsharded


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.wide": torch.randn(3, 5, generator=generator),
        "model.strided": torch.randn(4, 6, generator=generator)[:, ::2],
        "model.half": torch.randn(7, generator=generator).bfloat16(),
        "optim.step": torch.tensor(3.0),
        "optim.empty": torch.empty(0, 4),
        "generators.cpu": torch.arange(9, dtype=torch.uint8),
        "a.last": torch.nn.Parameter(torch.ones(2)),
    }


def test_the_files_are_those_that_dcp_would_have_us_write(tmp_path: Path) -> None:
    folders = tmp_path / "ours", tmp_path / "dcp"
    for folder in folders:
        folder.mkdir()
    tensors = state()
    assert is_unsharded(tensors)
    assert save_unsharded(folders[0], tensors) == save_tensors(folders[1], tensors)
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for name in names[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_what_dcp_must_judge_is_left_to_it() -> None:
    assert not is_unsharded({"w": torch.ones(1, dtype=torch.complex64)})
    assert not is_unsharded({"w": object()})  # type: ignore[dict-item]
