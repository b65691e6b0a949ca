"""Causal self-attention.

Shape suffixes: B batch, T time, S time of all keys (T and what a cache holds), D width, H heads,
J heads of keys and values, K head width, R positions whose scores are measured, N = B·J.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.carry import Carry
from longhaul.model.embedding import rotate
from longhaul.model.layers import softcapped, unit_rms
from longhaul.model.masks import View
from longhaul.model.tap import Gauge, Tap
from longhaul.model.weights import Linear, Scalars

_QK_NORM_EPS = 1e-6  # Only keeps a zero vector finite; queries and keys are far larger.
# Up to this many tokens torch's attention on a CPU takes longer in bfloat16 than in float32,
# forward and backward together: five times as long at 64 (LOG.md, 2026-11-21). Written out it is
# faster than both, if nothing is asked of it but to be causal (2026-11-25).
_SHORT_ON_CPU = 256
# Both as in modded-nanogpt: the layer's own share, then that of what is mixed in.
_VALUE_SHARES = (0.5, 0.5)
SAMPLED_ROWS = 32
"""Positions of each sequence whose attention logits are measured, evenly spread."""


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (arXiv 1706.03762, section 3.2)."""

    LOGIT_GAUGE = Gauge(
        "attention_logit_max",
        "logit",
        "max",
        f"largest logit that goes into attention's softmax, of {SAMPLED_ROWS} evenly "
        "spread positions of each sequence, over all keys that each may attend to",
    )

    def __init__(self, settings: ModelSection, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.key_heads = settings.heads, settings.key_heads
        self.head_width = settings.key_width
        self.qk_norm = settings.qk_norm
        self.dropout = settings.dropped_attention
        self.own_scale, self.score_softcap = settings.score_scale, settings.score_softcap
        self.scale = settings.score_scale or self.head_width**-0.5
        # √s on queries and on keys instead of s on their product.
        root = self.head_width**-0.25 if settings.score_scale is None else settings.score_scale**0.5
        self.root_scale = root if settings.split_score_scale else None
        # One product for queries, keys and values; rows in that order, heads within each.
        keys = self.key_heads * self.head_width
        parts = (settings.heads_width, keys, keys)
        bias = settings.bias or settings.qkv_bias
        self.qkv = Linear(settings.width, sum(parts), bias, parts=parts)
        ones, learns = (1.0,) * self.head_width, settings.qk_norm_scale
        self.query_scale = Scalars(ones) if learns else None
        self.key_scale = Scalars(ones) if learns else None
        self.value_residual = settings.value_residual
        self.value_mix = Scalars(_VALUE_SHARES) if settings.value_residual and layer else None
        # The first and the last so many layers get values of their own from token tables.
        tables, from_end = settings.value_embeddings, settings.layers - layer
        has_extra = layer < tables or from_end <= tables
        self.extra_value_mix = Scalars(_VALUE_SHARES) if has_extra else None
        # arXiv 2110.09456, section 2.2
        self.head_scale = Scalars((1.0,) * self.heads) if settings.attention_head_scale else None
        zero, width = settings.zero_projections, settings.width
        into = settings.heads_width
        self.out = Linear(into, width, settings.bias, writes_residual=True, zero=zero)

    def forward(self, x_BTD: Tensor, carry: Carry, extra_value_BTD: Tensor | None = None) -> Tensor:
        """Attend from every position of the normalised stream to itself and those before it, as far
        as it may see; layers that have one are given values from a token table [B, T, J·K].
        """
        mixed_BTD = self.qkv(x_BTD)
        is_short = x_BTD.size(1) <= _SHORT_ON_CPU and mixed_BTD.is_cpu
        if is_short and mixed_BTD.dtype == torch.bfloat16 and self._is_plain(carry):
            with torch.autocast("cpu", enabled=False):
                gathered_BTD = self._attended(mixed_BTD, carry, extra_value_BTD, written_out=True)
        elif is_short and mixed_BTD.dtype != torch.float32:
            # One pass here: later the parts are strided, and three times as slow to convert.
            with torch.autocast("cpu", enabled=False):
                gathered_BTD = self._attended(mixed_BTD.float(), carry, extra_value_BTD)
            gathered_BTD = gathered_BTD.to(mixed_BTD.dtype)
        else:
            gathered_BTD = self._attended(mixed_BTD, carry, extra_value_BTD)
        out_BTD: Tensor = self.out(gathered_BTD)
        return out_BTD

    def _is_plain(self, carry: Carry) -> bool:
        """Nothing is asked of attention but to be causal, and each head has keys of its own."""
        drops, alone = self.dropout and self.training, self.heads == self.key_heads
        if drops or not alone or self.score_softcap:
            return False
        return carry.cache is None and carry.sight[self.layer].is_causal

    def _attended(
        self,
        mixed_BTD: Tensor,
        carry: Carry,
        extra_value_BTD: Tensor | None,
        written_out: bool = False,
    ) -> Tensor:
        batch, length, _ = mixed_BTD.shape
        width, key_width = self.heads * self.head_width, self.key_heads * self.head_width
        # Queries and keys stay one tensor of H + J heads as long as they are treated alike.
        both_BTHK, value_BTJK = (
            part_BTD.view(batch, length, -1, self.head_width)
            for part_BTD in mixed_BTD.split((width + key_width, key_width), dim=-1)
        )
        value_BTJK = self._mixed(value_BTJK, carry, extra_value_BTD)
        if written_out:
            both_BTHK = both_BTHK.float()  # norms and angles
        if self.qk_norm:
            both_BTHK = unit_rms(both_BTHK, _QK_NORM_EPS)  # of each head (arXiv 2302.05442)
        if self.query_scale is not None and self.key_scale is not None:
            query_HK = self.query_scale.weight.expand(self.heads, -1)
            key_JK = self.key_scale.weight.expand(self.key_heads, -1)
            both_BTHK = both_BTHK * torch.cat((query_HK, key_JK)).to(both_BTHK.dtype)
        if carry.rotation is not None:
            both_BTHK = rotate(both_BTHK, carry.rotation)
        if self.root_scale is not None:
            both_BTHK = both_BTHK * self.root_scale
        query_BHTK, key_BJTK = both_BTHK.transpose(1, 2).split((self.heads, self.key_heads), dim=1)
        value_BJTK = value_BTJK.transpose(1, 2)
        if carry.cache is not None:
            key_BJTK, value_BJTK = carry.cache.extend(self.layer, key_BJTK, value_BJTK)
        view = carry.sight[self.layer]
        if carry.tap is not None and carry.tap.is_open:
            self._measure(carry.tap, query_BHTK, key_BJTK, view)
        if written_out:
            scale = self.scale if self.root_scale is None else 1.0
            gathered_BHTK: Tensor = _ShortAttention.apply(  # type: ignore[no-untyped-call]
                both_BTHK, value_BTJK.to(mixed_BTD.dtype), scale
            )
        else:
            gathered_BHTK = self._gather(query_BHTK, key_BJTK, value_BJTK, view)
        if self.head_scale is not None:
            scale_H11 = self.head_scale.weight[:, None, None]
            gathered_BHTK = gathered_BHTK * scale_H11.to(gathered_BHTK.dtype)
        return gathered_BHTK.transpose(1, 2).reshape(batch, length, width)

    @torch.no_grad()
    def _measure(self, tap: Tap, query_BHTK: Tensor, key_BJSK: Tensor, view: View) -> None:
        """The largest logit of the sampled positions, the product in float32."""
        batch, _, length, _ = query_BHTK.shape
        rows = min(SAMPLED_ROWS, length)
        asking_R = torch.arange(1, rows + 1, device=query_BHTK.device) * length // rows - 1
        query_BHRK = query_BHTK[:, :, asking_R].float()
        # Query heads that share a head of keys stand side by side.
        shared_BJRK = query_BHRK.reshape(batch, self.key_heads, -1, self.head_width)
        with torch.autocast(query_BHTK.device.type, enabled=False):
            # Not as a `bmm`: selective recomputation keeps the results of those by their count, and
            # would take this one, which is not computed again, for attention's own.
            shared_NRK, key_NSK = shared_BJRK.flatten(0, 1), key_BJSK.float().flatten(0, 1)
            nothing = shared_NRK.new_zeros(())
            logits_NRS = torch.baddbmm(nothing, shared_NRK, key_NSK.mT, beta=0)
        logits_BHRS = logits_NRS.view(batch, self.heads, rows, -1)
        seen = view.seen_by(asking_R, batch, key_BJSK.size(2))
        if seen is not None:
            logits_BHRS.masked_fill_(~seen, -torch.inf)
        largest = logits_BHRS.amax() * (self.scale if self.root_scale is None else 1.0)
        if self.score_softcap:
            largest = softcapped(largest, self.score_softcap)
        tap.write(self.LOGIT_GAUGE.name, largest, self.layer)

    def _mixed(self, value_BTJK: Tensor, carry: Carry, extra_value_BTD: Tensor | None) -> Tensor:
        """Values with shares of the first layer's and of a token table's, as they are cached."""
        if self.value_residual and self.layer == 0:
            carry.first_value_BTJK = value_BTJK
        if self.value_mix is not None:
            assert carry.first_value_BTJK is not None
            own, first = self.value_mix.weight.unbind()
            value_BTJK = own * value_BTJK + first * carry.first_value_BTJK
        if self.extra_value_mix is not None:
            assert extra_value_BTD is not None
            own, extra = self.extra_value_mix.weight.unbind()
            extra_BTJK = extra_value_BTD.view(value_BTJK.shape).to(value_BTJK.dtype)
            value_BTJK = own * value_BTJK + extra * extra_BTJK
        return value_BTJK

    def _gather(
        self, query_BHTK: Tensor, key_BJSK: Tensor, value_BJSK: Tensor, view: View
    ) -> Tensor:
        scale = self.own_scale if self.root_scale is None else 1.0
        # Asked of torch, not done by repeating keys: kernels that know groups need no copy, and
        # torch repeats for those that do not.
        grouped = self.heads != self.key_heads
        if view.blocks is not None:
            # Unlike SDPA it leaves dtypes to us, and autocast norms in float32.
            query_BHTK, key_BJSK = query_BHTK.to(value_BJSK.dtype), key_BJSK.to(value_BJSK.dtype)
            return _flex_attention()(
                query_BHTK, key_BJSK, value_BJSK,
                block_mask=view.blocks, scale=scale, enable_gqa=grouped,
                score_mod=capping(self.score_softcap) if self.score_softcap else None,
            )  # fmt: skip
        if self.score_softcap:
            return self._capped(query_BHTK, key_BJSK, value_BJSK, view)
        return functional.scaled_dot_product_attention(
            query_BHTK,
            key_BJSK,
            value_BJSK,
            attn_mask=view.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=view.is_causal,
            scale=scale,
            enable_gqa=grouped,
        )

    def _capped(
        self, query_BHTK: Tensor, key_BJSK: Tensor, value_BJSK: Tensor, view: View
    ) -> Tensor:
        """Attention with capped scores, which torch's own has not (Gemma 2, section 2)."""
        batch, heads, length, _ = query_BHTK.shape
        shares = heads // self.key_heads
        key_BHSK = key_BJSK.repeat_interleave(shares, dim=1)
        value_BHSK = value_BJSK.repeat_interleave(shares, dim=1)
        scale = self.scale if self.root_scale is None else 1.0
        scores_BHTS = softcapped(query_BHTK @ key_BHSK.mT * scale, self.score_softcap)
        asking_T = torch.arange(length, device=query_BHTK.device)
        seen = view.seen_by(asking_T, batch, key_BHSK.size(2))
        if seen is not None:
            scores_BHTS = scores_BHTS.masked_fill(~seen, -torch.inf)
        share_BHTS = torch.softmax(scores_BHTS, dim=-1)
        if self.dropout:
            share_BHTS = functional.dropout(share_BHTS, self.dropout, self.training)
        return share_BHTS.to(value_BHSK.dtype) @ value_BHSK


class _ShortAttention(torch.autograd.Function):
    """Causal attention of few tokens by whole products, N = B·H of them at once.

    Queries and keys come as one float32 tensor of 2·H heads, and go as one gradient, so that layout
    and dtype change in the same pass. Scores are float32: rounded to bfloat16, those near 50 would
    be off by a quarter. All other products are of the values' dtype.
    """

    @staticmethod
    def forward(ctx: Any, both_BTHK: Tensor, value_BTHK: Tensor, scale: float) -> Tensor:
        batch, length, heads, width = value_BTHK.shape
        both_2BHTK = both_BTHK.view(batch, length, 2, heads, width).permute(2, 0, 3, 1, 4)
        both_2NTK = both_2BHTK.reshape(2, -1, length, width)
        value_NTK = value_BTHK.transpose(1, 2).reshape(both_2NTK.shape[1:])
        unseen_1TT = both_2NTK.new_full((1, length, length), -math.inf).triu_(1)
        share_NTT = torch.softmax(
            torch.baddbmm(unseen_1TT, both_2NTK[0], both_2NTK[1].mT, alpha=scale), dim=-1
        ).to(value_NTK.dtype)
        query_NTK, key_NTK = both_2NTK.to(value_NTK.dtype)
        ctx.save_for_backward(query_NTK, key_NTK, value_NTK, share_NTT)
        ctx.scale = scale
        return torch.bmm(share_NTT, value_NTK).view(batch, heads, length, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BHTK: Tensor) -> tuple[Tensor, Tensor, None]:
        query_NTK, key_NTK, value_NTK, share_NTT = ctx.saved_tensors
        batch, heads, length, width = gradient_BHTK.shape
        gradient_NTK = gradient_BHTK.reshape(query_NTK.shape)
        towards_NTT = torch.ops.aten._softmax_backward_data(
            torch.bmm(gradient_NTK, value_NTK.mT), share_NTT, -1, share_NTT.dtype
        )
        both_2NTK = query_NTK.new_empty(2, *query_NTK.shape)
        nothing = query_NTK.new_zeros(())
        for to_NTK, scores_NTT, other_NTK in (
            (both_2NTK[0], towards_NTT, key_NTK),
            (both_2NTK[1], towards_NTT.mT, query_NTK),
        ):
            torch.baddbmm(nothing, scores_NTT, other_NTK, beta=0, alpha=ctx.scale, out=to_NTK)
        both_BT2HK = both_2NTK.new_empty(batch, length, 2, heads, width, dtype=torch.float32)
        both_BT2HK.copy_(both_2NTK.view(2, batch, heads, length, width).permute(1, 3, 0, 2, 4))
        value_NTK = torch.bmm(share_NTT.mT, gradient_NTK)
        value_BTHK = value_NTK.view(gradient_BHTK.shape).transpose(1, 2)
        return both_BT2HK.flatten(2, 3), value_BTHK, None


@cache
def capping(cap: float) -> Callable[..., Tensor]:
    """What FlexAttention does to a score; one function for all layers, which it is compiled for."""

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcapped(score, cap)

    return capped


_compiled_flex_attention: Callable[..., Tensor] | None = None


def _flex_attention() -> Callable[..., Tensor]:
    """FlexAttention as a fused kernel, made at its first use: it loads torch's compiler."""
    from torch.nn.attention.flex_attention import flex_attention

    global _compiled_flex_attention
    if torch.compiler.is_compiling():
        return flex_attention
    if _compiled_flex_attention is None:
        from longhaul.model.compiling import compiled_by_shape

        _compiled_flex_attention = compiled_by_shape(flex_attention, kept_by_checkpointing=True)
    return _compiled_flex_attention
