"""The transformer's shape and its switches, each with its source."""

import math
from typing import Annotated, Literal

from pydantic import Field

from longhaul.config.section import Section, fixed, live

LOGITS_AT_ONCE = 1 << 26
"""Of a forward pass that no backward pass follows: 1,300 tokens of GPT-2's vocabulary, which keep
a GPU busy and take less than a GB with their loss."""
CHUNK_ON_CPU, CHUNK, CHUNK_IN_PLACE = 1 << 20, 1 << 27, 1 << 29
"""Logits at once where a backward pass follows. On a CPU the 4 MB that its caches hold. On a GPU
each chunk of R rows adds its gradient of the head to those before: 12·V·D bytes (two float32 and
two bfloat16 passes) beside products of 6·R·V·D FLOPs. At 600 TFLOP/s and 3.35 TB/s, an H100's, that
is 358/R of the products' time: with GPT-2's vocabulary 13 % at 2²⁷ logits (R = 2,668) and 3 % at
2²⁹ (by arithmetic: no GPU has measured it). 2²⁹ take 1.1 GB in bfloat16 where a kernel makes the
gradient in their place; PyTorch's operations hold several copies, up to 1.6 GB at 2²⁷."""
_FEWEST_ROWS = 128
"""Of a chunk: fewer make products wait for memory."""
_SMEAR_CHANNELS = 12
"""That decide how much of the token before is added (modded-nanogpt)."""


def smear_weights(width: int) -> int:
    """Learned numbers of `token_smear`: its strength, and one for each channel that decides."""
    return 1 + min(width, _SMEAR_CHANNELS)


def rows_at_once(tokens: int, padded_vocab: int, on_cpu: bool, in_place: bool = False) -> int:
    """Tokens whose logits a training step makes at once: all, or those of an even chunk. The
    gradient is made `in_place` by a kernel, or else by PyTorch's operations.
    """
    chunk = CHUNK_ON_CPU if on_cpu else CHUNK_IN_PLACE if in_place else CHUNK
    most = max(_FEWEST_ROWS, chunk // padded_vocab)
    return -(-tokens // -(-tokens // most))


class WindowStage(Section):
    """How far back windowed layers see, from a step on."""

    from_step: int = live(ge=0)
    """First step count of this stage."""
    tokens: int = live(gt=0)
    """Positions attended to, the token's own included."""


class AheadStage(Section):
    """What the tokens after the next one count, from a step on."""

    from_step: int = live(ge=0)
    """First step count of this stage."""
    weights: tuple[Annotated[float, Field(ge=0)], ...] = live()
    """Of the losses of the second token ahead, the third, and so on; the next one's is 1."""


class ModelSection(Section):
    """A decoder-only transformer. Each switch is independent of the others."""

    # Shape.
    layers: int = fixed(gt=0)
    """Number of blocks."""
    heads: int = fixed(gt=0)
    """Attention heads per block; must divide `width`, unless `head_width` is given."""
    kv_heads: int | None = fixed(None, gt=0)
    """Heads of keys and values, shared by groups of query heads (grouped-query attention,
    arXiv 2305.13245, Llama); must divide `heads`. As many as `heads` when absent."""
    width: int = fixed(gt=0)
    """Width of the residual stream."""
    head_width: int | None = fixed(None, gt=0)
    """Width of a head of queries, keys or values (Qwen 3, Gemma 2, Mistral Nemo); `width` ÷ `heads`
    when absent."""
    mlp_width: int | None = fixed(None, gt=0)
    """Inner width of the MLP; 4 × width when absent."""
    embedding_width: int | None = fixed(None, gt=0)
    """Width of the token table, projected to `width` and back without biases (ALBERT, arXiv
    1909.11942; OPT-350m, YaLM-100B). `width`, and no projection, when absent."""
    context: int = fixed(gt=0)
    """Longest sequence, in tokens, that the model is made for."""
    vocab_multiple: int = fixed(1, gt=0)
    """Pad the vocabulary up to a multiple of this, for faster matrix products."""

    # Positions.
    positions: Literal["learned", "rotary", "none"] = fixed("rotary")
    """How a token learns where it stands: a table (GPT-2, OPT), rotated queries and keys
    (RoFormer, arXiv 2104.09864), or not at all."""
    position_init: Literal["normal", "sinusoidal"] = fixed("normal")
    """How the position table starts: GPT-2's normal, or the sinusoids of arXiv 1706.03762,
    section 3.5, scaled to `init_std` (OPT-175B's chronicle)."""
    rotary_base: float = fixed(10_000.0, gt=1)
    """Base of the rotary frequencies."""
    rotary_share: float = fixed(1.0, gt=0, le=1)
    """Share of each head's width that is rotated, its first channels (GPT-NeoX, arXiv 2204.06745,
    with 0.25)."""
    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = fixed("none")
    """Stretching of rotary positions beyond the context trained at first: all frequencies
    (arXiv 2306.15595), or only the slow ones (Llama 3.1; YaRN, arXiv 2309.00071, which sharpens
    attention, too)."""
    rotary_factor: float = fixed(8.0, ge=1)
    """How far `rotary_scaling` stretches."""
    rotary_original_context: int = fixed(8192, gt=0)
    """For `llama3` and `yarn`: the context trained at first, which tells slow frequencies from
    fast."""
    rotary_slow_turns: float = fixed(1.0, gt=0)
    """Pairs that turn less often in that context are stretched in full (Llama 3.1's
    `low_freq_factor`, YaRN's `beta_slow`)."""
    rotary_fast_turns: float | None = fixed(None, gt=0)
    """Pairs that turn more often are left alone (Llama 3.1's `high_freq_factor`, YaRN's
    `beta_fast`); 4 and 32 when absent."""
    rotary_attention_factor: float | None = fixed(None, gt=0)
    """For `yarn`: factor on rotated queries and on rotated keys; 0.1 · log `rotary_factor` + 1 when
    absent."""
    rotary_truncate: bool = fixed(True)
    """For `yarn`: the ramp from fast pairs to slow ones begins and ends at whole pairs; gpt-oss's
    does not."""

    # Norms.
    norm: Literal["layernorm", "rmsnorm"] = fixed("rmsnorm")
    """Normalisation around each sub-layer and before the head."""
    norm_eps: float = fixed(1e-5, gt=0)
    """Added to the variance inside a norm."""
    norm_scale: bool = fixed(True)
    """Learned scale of norms (and shift, with `bias`); modded-nanogpt goes without."""
    norm_placement: Literal["pre", "post"] = fixed("pre")
    """Before each sub-layer (GPT-2, most of OPT), or after each residual sum (arXiv 1706.03762,
    OPT-350m), then with no norm before the head."""
    parallel_residual: bool = fixed(False)
    """Attention and MLP of a block read the same stream, each through its own norm, and are added
    to it together (GPT-NeoX, arXiv 2204.06745, section 2.1)."""
    embedding_norm: bool = fixed(False)
    """Normalise the embedding before the first block (YaLM, BLOOM, modded-nanogpt)."""
    attention_out_norm: bool = fixed(False)
    """Normalise what attention adds (NormFormer, arXiv 2110.09456, post-attention LN; Gemma 2)."""
    mlp_out_norm: bool = fixed(False)
    """Normalise what the MLP adds (Gemma 2, arXiv 2408.00118)."""
    mlp_inner_norm: bool = fixed(False)
    """Normalise the MLP's inner activations (NormFormer, FFN LN)."""

    # Attention.
    qk_norm: bool = fixed(True)
    """RMS-normalise queries and keys per head (arXiv 2302.05442)."""
    qk_norm_scale: bool = fixed(False)
    """A learned scale of queries and one of keys after `qk_norm`, shared by the heads (Qwen 3,
    arXiv 2505.09388)."""
    qkv_bias: bool = fixed(False)
    """Biases of queries, keys and values, also without `bias` (Qwen 2, arXiv 2407.10671)."""
    score_scale: float | None = fixed(None, gt=0)
    """Factor on attention scores (Gemma 2's `query_pre_attn_scalar`, to the power of -1/2); 1 ÷
    √head width when absent."""
    score_softcap: float = fixed(0.0, ge=0)
    """Scores become cap · tanh(scores / cap) before the softmax (Gemma 2); 0: no cap. They are then
    written out, which takes memory with the square of the length."""
    split_score_scale: bool = fixed(False)
    """Scores as (√s·Q)·(√s·K) instead of s·(Q·K): the same numbers, less overflow in half
    precision (OPT-175B's chronicle, run 11.10)."""
    attention_head_scale: bool = fixed(False)
    """A learned factor on each head's output (NormFormer, HeadScale)."""
    window: int | None = fixed(None, gt=0)
    """Positions attended to in windowed layers, the token's own included; all when absent."""
    window_full_every: int = fixed(0, ge=0)
    """Every so many layers (the last of each group) attend without window; 0: all have one."""
    window_stages: tuple[WindowStage, ...] = live(())
    """Window warm-up: other windows from their step on, in training (modded-nanogpt)."""
    document_mask: bool = fixed(False)
    """Attend only within a document, told by end-of-text tokens."""

    # MLP.
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "geglu", "geglu_tanh", "swiglu"] = (
        fixed("gelu")
    )
    """Non-linearity of the MLP: GELU (arXiv 1606.08415; GPT-2's is the tanh approximation), ReLU
    (OPT), its square (arXiv 2109.08668, modded-nanogpt), or gated (arXiv 2002.05202: YaLM's
    GEGLU, Gemma's with the tanh approximation, Llama's SwiGLU)."""
    bias: bool = fixed(False)
    """Biases in linear layers and layer norms."""

    # Embedding and head.
    tied_head: bool = fixed(False)
    """Use the token embedding as the output matrix."""
    embedding_scale: float = fixed(1.0, gt=0)
    """Factor on the token embedding; √width in arXiv 1706.03762, section 3.4, and in metaseq."""
    token_smear: bool = fixed(False)
    """Add to each token's vector a gated share of the one before it (modded-nanogpt)."""
    bigram_rows: int = fixed(0, ge=0)
    """Rows of a table of hashed token pairs, added to the embedding (modded-nanogpt); 0: none."""
    logit_softcap: float = fixed(0.0, ge=0)
    """Logits become cap · tanh(logits / cap) (Gemma 2, arXiv 2408.00118); 0: no cap."""
    z_loss: float = fixed(0.0, ge=0)
    """Weight of log² of the softmax's normaliser in training (PaLM, arXiv 2204.02311,
    section 5)."""
    ahead_stages: tuple[AheadStage, ...] = live(())
    """Multi-token prediction: in training the same logits answer for the tokens after the next too,
    within its document (modded-nanogpt, after arXiv 2404.19737). In the gradients alone: the loss
    that is told is the next token's."""

    # Across the layers (all modded-nanogpt).
    value_residual: bool = fixed(False)
    """Mix the first layer's values into every layer's, by learned shares (arXiv 2410.17897)."""
    value_embeddings: int = fixed(0, ge=0)
    """Token tables added to the values of the first and of the last so many layers; 0: none."""
    input_mix: bool = fixed(False)
    """Each block reads a learned mixture of the stream and the embedded input."""
    unet_skips: bool = fixed(False)
    """The second half's blocks get the first half's outputs, last to first, by learned factors."""

    residual_clamp: float = live(0.0, ge=0)
    """Largest magnitude of the residual stream: what a block gives beyond it is cut off, and gets
    no gradient. 0 clamps nothing. Not a part of the architecture but a brake for a live run, on
    for as long as somebody, or `recover`'s `clamp`, thinks that it is needed."""

    # Dropout and initialisation.
    dropout: float = fixed(0.0, ge=0, lt=1)
    """Dropped share of what each sub-layer adds."""
    attention_dropout: float | None = fixed(None, ge=0, lt=1)
    """Dropped share of attention weights; `dropout` when absent."""
    embedding_dropout: float | None = fixed(None, ge=0, lt=1)
    """Dropped share of the embedding; `dropout` when absent (GPT-2). OPT has 0."""
    init_std: float = fixed(0.02, gt=0)
    """Standard deviation of normal initialisation; output projections use this ÷ √(2·layers)."""
    zero_projections: bool = fixed(False)
    """Matrices that write into the residual stream start at zero (modded-nanogpt)."""
    zero_head: bool = fixed(False)
    """An untied head starts at zero (modded-nanogpt)."""

    @property
    def inner_width(self) -> int:
        """Inner width of the MLP."""
        return self.mlp_width or 4 * self.width

    @property
    def key_width(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.width // self.heads

    @property
    def heads_width(self) -> int:
        """Width of the queries of all heads together."""
        return self.heads * self.key_width

    @property
    def key_heads(self) -> int:
        """Heads of keys and of values."""
        return self.kv_heads or self.heads

    @property
    def rotated_width(self) -> int:
        """Channels of each head that are rotated."""
        return int(self.key_width * self.rotary_share)

    @property
    def fast_turns(self) -> float:
        """Turns in the original context from which on a pair is not stretched."""
        return self.rotary_fast_turns or (32.0 if self.rotary_scaling == "yarn" else 4.0)

    @property
    def attention_factor(self) -> float:
        """Factor on rotated queries and on rotated keys (arXiv 2309.00071, equation 22)."""
        if self.rotary_scaling != "yarn":
            return 1.0
        return self.rotary_attention_factor or 0.1 * math.log(self.rotary_factor) + 1

    @property
    def dropped_attention(self) -> float:
        """Share of attention weights that is dropped in training."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def table_width(self) -> int:
        """Width of the token table."""
        return self.embedding_width or self.width

    @property
    def gated(self) -> bool:
        """The MLP multiplies one projection by another, and has three matrices."""
        return self.activation in ("geglu", "geglu_tanh", "swiglu")

    def window_of(self, layer: int) -> int | None:
        """Positions that a layer attends to when no stage says otherwise; None: all."""
        last_of_group = self.window_full_every and (layer + 1) % self.window_full_every == 0
        return None if last_of_group else self.window

    def window_at(self, step: int) -> int | None:
        """Positions that windowed layers see in the update after `step`, if a stage says so."""
        begun = [(at.from_step, at.tokens) for at in self.window_stages if at.from_step <= step]
        return max(begun)[1] if begun else None

    def ahead_at(self, step: int) -> tuple[float, ...]:
        """Weights of the tokens after the next one in the update after `step`."""
        begun = [(at.from_step, at.weights) for at in self.ahead_stages if at.from_step <= step]
        return max(begun)[1] if begun else ()

    def padded_vocab(self, vocab_size: int) -> int:
        """Rows of the embedding table for a tokenizer of `vocab_size` tokens."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple
