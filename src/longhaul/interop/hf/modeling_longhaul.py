"""A model whose switches no class of transformers has, as one that transformers loads: this file
lies in its folder, and longhaul computes. Shape suffixes: B batch, T time, V vocabulary.
"""

import json
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import can_return_tuple

try:
    from longhaul import __version__
    from longhaul.config.model import ModelSection
    from longhaul.model.gpt import GPT
    from longhaul.model.initialise import fill_buffers, fill_weight
except ImportError as error:
    way = "`pip install longhaul`, in the version that config.json names as longhaul_version"
    raise ImportError(f"longhaul computes this model, and is not here ({error}): {way}") from error


class LonghaulConfig(PretrainedConfig):
    """`model` is the table `[model]` of a recipe; `end_of_text` is the token that ends a text."""

    model_type = "longhaul"
    model: dict[str, Any] | None = None
    vocab_size: int = 0
    end_of_text: int | None = None
    longhaul_version: str | None = None


class LonghaulForCausalLM(PreTrainedModel, GenerationMixin):
    """Has no cache; of a text longer than `model.context` it sees the last so many tokens."""

    config_class = LonghaulConfig
    _input_embed_layer = "tokens"
    _no_split_modules = ["GPT"]

    def __init__(self, config: LonghaulConfig) -> None:
        super().__init__(config)
        try:
            settings = ModelSection.model_validate_json(json.dumps(config.model))
        except ValueError as error:
            known = f"longhaul {__version__} has no such model; {config.longhaul_version} wrote it"
            raise ValueError(f"{known}: install that version ({error})") from error
        self.model = GPT(settings, config.vocab_size, config.end_of_text)
        self.model.skips_masked = False  # by code that is compiled for every length of a text
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if next(module.buffers(recurse=False), None) is not None:
            fill_buffers(self.model)
        for name, weight in module.named_parameters(recurse=False):
            if not getattr(weight, "_is_hf_initialized", False):
                seed = int(torch.randint(1 << 62, (), device="cpu"))
                fill_weight(weight, name, module, self.model.settings, seed)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
    ) -> CausalLMOutput:
        """Logits [B, T, V]; with `labels` [B, T] the mean loss in nats of those that are not -100.

        `attention_mask` [B, T] may leave out tokens at both ends of a sequence, whose positions
        count from its first token; ValueError if it leaves out others.
        """
        if attention_mask is None or bool(attention_mask.all()):
            logits_BTV = self.model(input_ids)
        else:
            logits_BTV = self._of_padded(input_ids, attention_mask.bool())
        loss = None
        if labels is not None:
            loss = self.loss_function(logits_BTV, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits_BTV)

    def _of_padded(self, tokens_BT: Tensor, mask_BT: Tensor) -> Tensor:
        # Padding goes behind a text, where it changes no token's logits, and back.
        length, place_T = tokens_BT.size(1), torch.arange(tokens_BT.size(1)).to(tokens_BT.device)
        before_B1 = (mask_BT.cumsum(1) == 0).sum(1, keepdim=True)
        turned_BT, back_BT = (place_T + before_B1) % length, (place_T - before_B1) % length
        mask_BT = mask_BT.gather(1, turned_BT)
        if bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any()):
            raise ValueError("attention_mask: longhaul leaves out no token within a sequence")
        logits_BTV: Tensor = self.model(tokens_BT.gather(1, turned_BT))
        return logits_BTV.take_along_dim(back_BT[..., None], dim=1)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """All tokens so far, or the last that fit the context."""
        most = self.model.settings.context
        mask_BT = None if attention_mask is None else attention_mask[:, -most:]
        return {"input_ids": input_ids[:, -most:], "attention_mask": mask_BT}
