r"""What would embarrass a run, found in its text before a model learns it.

OPT-175B's loss once fell too fast: a cleaning step had left stray backslashes in one source. What
enters are documents, one source after the other, once; what leaves are findings, each with its
source, its measure and examples. Memory is fixed, however large a source is. Nothing changes here.
"""
