"""The transformer's shape and its switches."""

from typing import Literal

from longhaul.config.section import Section, fixed


class ModelSection(Section):
    """A decoder-only transformer, pre-norm. Each switch is independent of the others."""

    layers: int = fixed(gt=0)
    """Number of blocks."""
    heads: int = fixed(gt=0)
    """Attention heads per block; must divide `width`."""
    width: int = fixed(gt=0)
    """Width of the residual stream."""
    mlp_width: int | None = fixed(None, gt=0)
    """Inner width of the MLP; 4 × width when absent."""
    context: int = fixed(gt=0)
    """Longest sequence, in tokens, that the model is made for."""
    positions: Literal["learned", "rotary"] = fixed("rotary")
    """How a token learns where it stands."""
    rotary_base: float = fixed(10_000.0, gt=1)
    """Base of the rotary frequencies."""
    norm: Literal["layernorm", "rmsnorm"] = fixed("rmsnorm")
    """Normalisation before each sub-layer and before the head."""
    norm_eps: float = fixed(1e-5, gt=0)
    """Added to the variance inside a norm."""
    activation: Literal["gelu", "gelu_tanh", "relu"] = fixed("gelu")
    """Non-linearity of the MLP; GPT-2 uses the tanh approximation."""
    bias: bool = fixed(False)
    """Biases in linear layers and layer norms."""
    qk_norm: bool = fixed(True)
    """RMS-normalise queries and keys per head (arXiv 2302.05442), without learned scale."""
    tied_head: bool = fixed(False)
    """Use the token embedding as the output matrix."""
    dropout: float = fixed(0.0, ge=0, lt=1)
    """Dropped share on embeddings, attention weights and both sub-layer outputs, as GPT-2."""
    init_std: float = fixed(0.02, gt=0)
    """Standard deviation of normal initialisation; output projections use this ÷ √(2·layers)."""
    vocab_multiple: int = fixed(1, gt=0)
    """Pad the vocabulary up to a multiple of this, for faster matrix products."""

    @property
    def inner_width(self) -> int:
        """Inner width of the MLP."""
        return self.mlp_width or 4 * self.width

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    def padded_vocab(self, vocab_size: int) -> int:
        """Rows of the embedding table for a tokenizer of `vocab_size` tokens."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple
