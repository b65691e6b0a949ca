"""From text to draws: readers, tokenizers, shards, order. Only `batches.py` imports torch."""
