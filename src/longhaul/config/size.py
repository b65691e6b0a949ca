"""Parameters and FLOPs of a model, counted from its recipe alone.

Enters: a `ModelSection` and a vocabulary. Leaves: counts, tested against the real model.
Never knows: tensors.
"""

from dataclasses import dataclass

from longhaul.config.model import ModelSection


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameter counts, each of them exact."""

    token_table: int
    position_table: int
    blocks: int
    """Everything inside the blocks."""
    final_norm: int
    head: int
    """Rows × width of the output product, whether tied to the token table or not."""
    tied_head: bool
    layers: int
    width: int

    @property
    def total(self) -> int:
        """Parameters stored."""
        stored_head = 0 if self.tied_head else self.head
        return self.token_table + self.position_table + self.blocks + self.final_norm + stored_head

    @property
    def non_embedding(self) -> int:
        """Parameters outside look-up tables and the head (arXiv 2001.08361, section 2.1)."""
        return self.blocks + self.final_norm

    @property
    def active(self) -> int:
        """N of PaLM's formula: what multiplies each token. The head product counts once, tied
        or not; look-up tables do not count (DESIGN rule 16).
        """
        return self.non_embedding + self.head

    def flops_per_token(self, span: int, causal: bool = False) -> int:
        """Training FLOPs per token, forward and backward (PaLM, arXiv 2204.02311, appendix B).

        Args:
            span: positions attended to, in tokens.
            causal: count only the half of the attention matrix that is not masked.
        """
        attention = 12 * self.layers * self.width * span
        return 6 * self.active + (attention // 2 if causal else attention)


def model_size(model: ModelSection, vocab_size: int) -> ModelSize:
    """Count the parameters of `model` with a tokenizer of `vocab_size` tokens."""
    width, inner = model.width, model.inner_width
    bias = 1 if model.bias else 0
    norm_has_bias = bias if model.norm == "layernorm" else 0
    norm = width * (1 + norm_has_bias)
    attention = width * 3 * width + width * width + bias * (3 * width + width)
    mlp = 2 * width * inner + bias * (inner + width)
    rows = model.padded_vocab(vocab_size)
    return ModelSize(
        token_table=rows * width,
        position_table=model.context * width if model.positions == "learned" else 0,
        blocks=model.layers * (attention + mlp + 2 * norm),
        final_norm=norm,
        head=rows * width,
        tied_head=model.tied_head,
        layers=model.layers,
        width=width,
    )
