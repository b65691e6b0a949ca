"""From a document as it was read to one that a model should learn, or to none, with the reason.

Everything here judges one document at a time and knows nothing of other documents, of files or of
processes, so that a corpus is cleaned alike by any number of workers. What compares documents with
each other is deduplication. Text is cut or replaced as docs/clean.md states; nothing is added.
"""
