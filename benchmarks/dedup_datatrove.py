"""Runs with the Python of an environment that has datatrove: its MinHash pipeline on our parts.

    PYTHON dedup_datatrove.py FOLDER OUT BUCKETS HASHES_PER_BUCKET WORKERS

Its four stages as its own example has them, with a task for each file, and as many workers.
Prints the seconds and the documents kept, as JSON.
"""

import json
import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    buckets, hashes, workers = map(int, sys.argv[3:6])
    config = MinhashConfig(n_grams=5, num_buckets=buckets, hashes_per_bucket=hashes)
    files = len(list(folder.glob("*.parquet")))

    def reader() -> ParquetReader:
        return ParquetReader(str(folder), text_key="text", id_key="name", glob_pattern="*.parquet")

    stages = [
        ([reader(), MinhashDedupSignature(str(out / "signatures"), config=config)], files),
        ([MinhashDedupBuckets(str(out / "signatures"), str(out / "pairs"), config=config)],
         buckets),
        ([MinhashDedupCluster(str(out / "pairs"), str(out / "remove"), config=config)], 1),
        ([reader(), MinhashDedupFilter(str(out / "remove")),
          ParquetWriter(str(out / "kept"), compression="zstd")], files),
    ]  # fmt: skip
    began = time.perf_counter()
    for number, (pipeline, tasks) in enumerate(stages):
        logs = str(out / f"logs-{number}")
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=min(workers, tasks), logging_dir=logs
        ).run()
    seconds = time.perf_counter() - began
    from pyarrow import parquet

    kept = sum(parquet.read_metadata(path).num_rows for path in (out / "kept").rglob("*.parquet"))
    print(json.dumps({"seconds": seconds, "kept": kept}))


if __name__ == "__main__":
    main()
