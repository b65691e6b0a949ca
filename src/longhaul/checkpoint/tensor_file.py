"""Writing one file of tensors in the safetensors format; reading it is that library's.

The library's own writing makes a full disk a text-only error, does not fsync, and its hash would be
that of what a bad disk gives back, not of the bytes in memory.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from longhaul.store.manifest import FileEntry, write_listed_file

SUFFIX = ".safetensors"

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""The dtypes a checkpoint may hold, by the names of the safetensors format."""

_SLICE_BYTES = 4 << 20
"""Hashed and written at once, while the bytes are in the processor's cache."""


def write_tensor_file(
    path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None
) -> FileEntry:
    """Write contiguous CPU tensors to a new file `path` and fsync it.

    Format (https://huggingface.co/docs/safetensors): the length of the header (8 bytes, little
    endian), the header in JSON, the tensors one after the other. `notes` stand in its header.
    """
    return write_listed_file(path, _content(tensors, notes))


def _content(
    tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None
) -> Iterator[bytes | memoryview]:
    # Wide elements first: then every tensor begins at a multiple of its own element size, which
    # readers that map the file into memory rely on.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, object] = {} if notes is None else {"__metadata__": dict(notes)}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        entries[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        # `reshape(-1)` because a 0-d tensor cannot be viewed as bytes; no values are converted.
        flat = tensors[name].detach().reshape(-1).view(torch.uint8).numpy()
        for begin in range(0, flat.size, _SLICE_BYTES):
            yield flat[begin : begin + _SLICE_BYTES].data
