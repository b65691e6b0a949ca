"""longhaul pretrains language models that finish."""

__version__ = "0.1.0"
