"""Stages between raw text and tokens: parts of documents, made on all cores, each made once."""
