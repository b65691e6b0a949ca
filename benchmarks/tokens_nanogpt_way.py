"""nanoGPT's way to tokens (its data/openwebtext/prepare.py), written anew; run by another Python.

    PYTHON tokens_nanogpt_way.py TEXT.jsonl VOCABULARY.json OUT_FOLDER PROCESSES

Reads JSON lines with `datasets`, splits, encodes each document with tiktoken in a `map` over
processes, and writes all tokens of a split into one memory-mapped file. VOCABULARY: the split's
expression and each token's bytes in hexadecimal, by number.
"""

import json
import os
import sys
from pathlib import Path

# Its scratch copies lie where the benchmark says, and nothing is fetched.
OUT = Path(sys.argv[3])
os.environ["HF_HOME"] = str(OUT / "cache")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import tiktoken  # noqa: E402
from datasets import disable_progress_bars, load_dataset  # noqa: E402

_SHARDS = 1024


def main() -> None:
    text, vocabulary, processes = sys.argv[1], sys.argv[2], int(sys.argv[4])
    found = json.loads(Path(vocabulary).read_text())
    end = found["end_of_text"]
    encoding = tiktoken.Encoding(
        "bench",
        pat_str=found["split"],
        mergeable_ranks={bytes.fromhex(token): n for token, n in found["tokens"].items()},
        special_tokens={"<|endoftext|>": end},
    )

    def process(example):  # type: ignore[no-untyped-def]
        ids = encoding.encode_ordinary(example["text"])
        ids.append(end)
        return {"ids": ids, "len": len(ids)}

    disable_progress_bars()
    whole = load_dataset("json", data_files=text, num_proc=None)["train"]
    split = whole.train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    tokenized = split.map(process, remove_columns=["text"], num_proc=processes)
    for side, rows in tokenized.items():
        total = int(np.sum(rows["len"], dtype=np.uint64))
        out = np.memmap(OUT / f"{side}.bin", dtype=np.uint16, mode="w+", shape=(total,))
        begin = 0
        for number in range(min(_SHARDS, len(rows))):
            shard = rows.shard(num_shards=min(_SHARDS, len(rows)), index=number, contiguous=True)
            tokens = np.concatenate(shard.with_format("numpy")["ids"])
            out[begin : begin + len(tokens)] = tokens
            begin += len(tokens)
        out.flush()


if __name__ == "__main__":
    main()
