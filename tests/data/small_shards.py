"""A prepared folder cut into many small shards, as large texts have them."""

import json
from pathlib import Path

from longhaul.core.files import sha256_of, write_json
from longhaul.data.dataset import MANIFEST
from longhaul.data.shards import Shard, ShardWriter


def in_small_shards(folder: Path, max_tokens: int) -> Path:
    """The folder itself, its shards to train on with few more tokens than that each."""
    manifest = json.loads((folder / MANIFEST).read_text())
    tokenizer = manifest["tokenizer"]
    for number, source in enumerate(manifest["sources"]):
        stem = f"{number:02d}-small"
        writer = ShardWriter(folder, stem, tokenizer["vocab_size"], tokenizer["sha256"], max_tokens)
        for one in source["train"]:
            for name, tokens, size in Shard(folder / one["file"]).documents():
                writer.add(name, tokens, size)
            (folder / one["file"]).unlink()
        source["train"] = [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in writer.close()
        ]
    write_json(folder / MANIFEST, manifest)
    return folder
