"""What each position may attend to: everything before it, a window of it, its own document.

Shape suffixes: B batch, T positions that ask, R some of these, S positions so far (S = past + T;
without a cache both are the sequence), Q squares of positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longhaul.config.model import ModelSection

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Window = int | Tensor | None
"""Positions attended to, the position's own included; None: all. As a tensor, [], code that is
compiled serves every number of them that is below the length."""
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(sequence, head, asking position, asked position) → may attend; of numbers or tensors."""


@dataclass(frozen=True, slots=True)
class View:
    """What one layer's queries see. With no field set: all keys there are."""

    is_causal: bool = False
    """Every key up to the query's own position, as many keys as queries."""
    mask: Tensor | None = None
    """True where a query may attend, [T, S] or [B, 1, T, S]."""
    blocks: "BlockMask | None" = None
    """The same for FlexAttention, which skips what is masked."""

    def seen_by(self, asking_R: Tensor, sequences: int, keys: int) -> Tensor | None:
        """True where these of the new positions may attend [R, S] or [B, 1, R, S]; None: all."""
        if self.mask is not None:
            return self.mask[..., asking_R, :]
        if not self.is_causal and self.blocks is None:
            return None
        asked_S = torch.arange(keys, device=asking_R.device)
        if self.blocks is None:
            return asked_S <= asking_R[:, None]
        sequence = torch.arange(sequences, device=asking_R.device)[:, None, None, None]
        seen: Tensor = self.blocks.mask_mod(sequence, sequence, asking_R[:, None], asked_S)
        return seen


_BLOCK = 128  # Side of the squares that FlexAttention computes or skips.

CAUSAL, EVERYTHING = View(is_causal=True), View()

Sight = tuple[View, ...]
"""The views of one forward pass, by layer."""


def views_of(
    length: int,
    past: int,
    device: torch.device,
    windows: Sequence[Window],
    document_BS: Tensor | None = None,
    sparse: bool = False,
) -> Sight:
    """The views of one pass over `length` new positions, T, after the `past` ones of a cache.

    `windows`: of each layer. `document_BS`: which document each position belongs to; None: all to
    the same. `sparse`: make FlexAttention's block masks, not boolean ones.
    """

    def view(window: Window) -> View:
        if window is None and document_BS is None:
            if past == 0:
                return CAUSAL
            if length == 1:
                return EVERYTHING
        rule = may_attend(window, document_BS)
        if sparse:
            from torch.nn.attention.flex_attention import BlockMask

            some, whole = _squares(length, window, document_BS, device)
            tables, lengths = (*_ordered(some), *_ordered(whole)), (length, length)
            blocks = BlockMask.from_kv_blocks(
                *tables, BLOCK_SIZE=_BLOCK, mask_mod=rule, seq_lengths=lengths
            )
            return View(blocks=blocks)
        asking_T1 = torch.arange(past, past + length, device=device)[:, None]
        asked_S = torch.arange(past + length, device=device)
        sequences = 1 if document_BS is None else document_BS.size(0)
        sequence = torch.arange(sequences, device=device)[:, None, None, None]
        return View(mask=rule(sequence, sequence, asking_T1, asked_S))

    # All at once: a recomputed layer must leave nothing behind, or torch.compile cannot checkpoint.
    own = [None if _hides_nothing(window, past + length) else window for window in windows]
    views = {window: view(window) for window in dict.fromkeys(own)}
    return tuple(views[window] for window in own)


def _hides_nothing(window: Window, length: int) -> bool:
    return window is None or (isinstance(window, int) and window >= length)


def _squares(
    length: int, window: Window, document_BS: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The squares of which some pairs may attend, and those of which all may, each [B, 1, Q, Q]."""
    # Known from a square's nearest and farthest pair, as documents never come back: torch's
    # `create_block_mask` writes all pairs out, 5 bytes for each.
    first_Q = torch.arange(0, length, _BLOCK, device=device)
    last_Q = (first_Q + (_BLOCK - 1)).clamp(max=length - 1)
    apart_QQ = first_Q[:, None] - last_Q  # of the nearest pair, in squares behind the diagonal
    some_QQ = apart_QQ > 0
    whole_QQ = some_QQ & (last_Q - first_Q == _BLOCK - 1)[:, None]  # what is padded never is
    if window is not None:
        some_QQ = some_QQ & (apart_QQ < window)
        whole_QQ = whole_QQ & (last_Q[:, None] - first_Q < window)
    some_BQQ, whole_BQQ = some_QQ[None], whole_QQ[None]
    if document_BS is not None:
        at_first_BQ, at_last_BQ = document_BS[:, first_Q], document_BS[:, last_Q]
        some_BQQ = some_BQQ & (at_first_BQ[:, :, None] == at_last_BQ[:, None])
        whole_BQQ = whole_BQQ & (at_last_BQ[:, :, None] == at_first_BQ[:, None])
    on_diagonal_QQ = first_Q[:, None] == first_Q
    return (((some_BQQ & ~whole_BQQ) | on_diagonal_QQ)[:, None], whole_BQQ[:, None])


def _ordered(squares_B1QQ: Tensor) -> tuple[Tensor, Tensor]:
    """How many squares of each row there are [B, 1, Q], and all columns, those first."""
    chosen_B1QQ = squares_B1QQ.int()
    columns_B1QQ = chosen_B1QQ.argsort(dim=-1, descending=True, stable=True)
    return chosen_B1QQ.sum(dim=-1, dtype=torch.int32), columns_B1QQ.int()


def may_attend(window: Window, document_BS: Tensor | None) -> Rule:
    """The rule: not ahead, not further back than the window, not in another document."""

    def rule(sequence: Tensor, _head: Tensor, asking: Tensor, asked: Tensor) -> Tensor:
        seen = asked <= asking
        if window is not None:
            seen = seen & (asking - asked < window)
        if document_BS is not None:
            seen = seen & (document_BS[sequence, asking] == document_BS[sequence, asked])
        return seen

    return rule


def make_sight(
    settings: ModelSection,
    tokens_BS: Tensor,
    window: Window = None,
    past: int = 0,
    end_of_text: int | None = None,
    skips_masked: bool = True,
) -> Sight:
    """The views of a forward pass over `tokens_BS`, of which a cache holds the first `past`.

    `window`: instead of `model.window`, in the layers that have one (window warm-up).
    `end_of_text`: the token that ends a document, and belongs to it. `skips_masked`: by
    FlexAttention, where it serves.
    """
    own = [settings.window_of(layer) for layer in range(settings.layers)]
    windows = [every if every is None or window is None else window for every in own]
    document_BS = None
    if settings.document_mask:
        assert end_of_text is not None
        ends_BS = torch.eq(tokens_BS, end_of_text).long()
        document_BS = ends_BS.cumsum(dim=1) - ends_BS
    length, device = tokens_BS.size(1) - past, tokens_BS.device
    # With a cache it would be compiled anew for each of its lengths.
    sparse = skips_masked and past == 0 and flex_attends(settings, length, device)
    return views_of(length, past, device, windows, document_BS, sparse)


def staged_window(settings: ModelSection, window: int | None, length: int) -> int | None:
    """Positions that windowed layers attend to, of a model whose windows come in stages; None where
    they are all of a sequence, or the same in the whole run.
    """
    if not settings.window_stages:
        return None
    wide = settings.window if window is None else window
    return None if _hides_nothing(wide, length) else wide


def flex_attends(settings: ModelSection, length: int, device: torch.device) -> bool:
    """Whether FlexAttention serves sequences of so many tokens, and has squares to skip: not on a
    CPU, where it has no backward pass (torch 2.13), and not with dropout.
    """
    masks = settings.document_mask or settings.window is not None
    serves = device.type == "cuda" and not settings.dropped_attention
    return masks and serves and length > _BLOCK
