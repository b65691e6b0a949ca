"""The checkpoint of one process with whole tensors, written without DCP.

Enters: tensors, none of them sharded. Leaves: the very bytes that DCP's planner would have us
write (a test compares), half a second sooner: importing DCP takes that long, and one process has
nothing to plan. Never knows: shards.
"""

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn

from longhaul.checkpoint.tensor_file import DTYPES, SUFFIX, write_tensor_file
from longhaul.store.manifest import FileEntry, write_listed_json

FORMAT_VERSION = 1
METADATA_NAME = "metadata.json"
_FILE = f"__0_0{SUFFIX}"


def is_unsharded(tensors: Mapping[str, Tensor]) -> bool:
    """One process holds all of every tensor, in dtypes that a checkpoint takes."""
    return not (dist.is_available() and dist.is_initialized()) and all(
        type(tensor) in (Tensor, nn.Parameter) and tensor.dtype in DTYPES
        for tensor in tensors.values()
    )


def save_unsharded(folder: Path, tensors: Mapping[str, Tensor]) -> tuple[FileEntry, ...]:
    """Write `tensors` into `folder`, all files on the medium; what was written.

    Raises:
        OSError: the medium refused.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = [write_tensor_file(folder / _FILE, whole)] if whole else []
    described = {
        name: {
            "dtype": DTYPES[tensor.dtype],
            "size": list(tensor.shape),
            "chunks": [
                {
                    "offsets": [0] * tensor.dim(),
                    "sizes": list(tensor.shape),
                    "file": _FILE,
                    "key": name,
                }
            ],
        }
        for name, tensor in whole.items()
    }
    body = {"format_version": FORMAT_VERSION, "tensors": described}
    return (*files, write_listed_json(folder / METADATA_NAME, body))
