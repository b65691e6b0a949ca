"""Duplicates across parts: by hash, by MinHash with true Jaccard, by paragraph; one copy is kept.

A document's number is `part << 32 | row`, with parts in the recipe's order, so smaller is earlier.
Whatever compares documents of different parts goes through buckets on disk, and nothing depends on
who does which job.
"""
