import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from longhaul.checkpoint import tensor_file
from longhaul.checkpoint.tensor_file import DTYPES, write_tensor_file
from longhaul.core.files import sha256_of


def test_the_safetensors_library_reads_the_same_bits(
    tmp_path: Path, tensors: dict[str, Tensor], same_bits: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slices smaller than a tensor, and no divisor of its size.
    monkeypatch.setattr(tensor_file, "_SLICE_BYTES", 100)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    entry = write_tensor_file(tmp_path / "file.safetensors", tensors)
    same_bits(safetensors.torch.load_file(tmp_path / entry.name), tensors)
    assert entry.size_bytes == (tmp_path / entry.name).stat().st_size
    assert entry.sha256 == sha256_of(tmp_path / entry.name)


def test_every_dtype_survives(tmp_path: Path, same_bits: Callable) -> None:
    bits = torch.arange(48, dtype=torch.uint8)
    tensors = {name: bits.view(dtype) for dtype, name in DTYPES.items() if dtype != torch.bool}
    tensors[DTYPES[torch.bool]] = bits % 2 == 0
    write_tensor_file(tmp_path / "file.safetensors", tensors)
    same_bits(safetensors.torch.load_file(tmp_path / "file.safetensors"), tensors)


def test_every_tensor_begins_at_a_multiple_of_its_element_size(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_tensor_file(tmp_path / "file.safetensors", tensors)
    content = (tmp_path / "file.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(content[8 : 8 + length]).items():
        assert entry["data_offsets"][0] % tensors[name].element_size() == 0


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    write_tensor_file(tmp_path / "file", {"a": torch.ones(1)})
    with pytest.raises(FileExistsError):
        write_tensor_file(tmp_path / "file", {"a": torch.zeros(1)})
