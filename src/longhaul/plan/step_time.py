"""What a training step should take under a layout: a roofline of products, memory and links.

A micro-batch on one stage takes the time of its matrix products (or of reading their operands, if
that is longer), of attention, of element-wise passes over memory, and of what tensor ranks send
each other, which nothing hides. Gathering and reducing shards hides behind it as far as it is
shorter. A pipeline adds its bubble (arXiv 2104.04473, section 2.2), the step its update. The one
number that is fitted is `Rates.efficiency`.

Names: T tokens of a micro-batch, D width, t tensor ranks, p stages, v stretches of each rank.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from longhaul.config.recipe import Recipe
from longhaul.config.size import ModelSize, model_size
from longhaul.core.devices import Basis, Device, Format
from longhaul.core.errors import UsageError
from longhaul.core.units import Bytes, Seconds
from longhaul.parallel.layout import Layout
from longhaul.plan.practice import LONGHAUL, Practice

BEST_OF_PEAK = 0.8
"""Assumed of a device whose best product nobody published; those known reach 0.51 to 0.87."""
FITTED = {"a100": 0.74, "h100": 0.67, "h200": 0.67}
"""Share of the best product that products reach: median over published runs (docs/planning.md);
an H200 computes as an H100 does."""
EFFICIENCY = 0.6
"""Assumed of a device without a fit."""
ATTENTION_OF_PRODUCTS = 0.6
"""Assumed: FlashAttention-2 reaches 225 of an A100's 312 TFLOP/s forward and backward at best
(arXiv 2307.08691, section 4) and less with short heads; products of 271 are its ceiling."""
MEMORY_SHARE = 0.85
"""Assumed, of a device's memory rate, that element-wise passes reach."""
LINK_SHARE = 0.8
"""Published: ring collectives reach 78 to 82 % of NVLink (ml-engineering, network)."""
NETWORK_SHARE = 0.74
"""Published: all-reduce over four nodes reaches 74 % of eight 400 Gb/s adapters (same)."""
NETWORK_HALF: Bytes = 90 << 20
"""Published: payload at which a collective over four nodes reaches half of that: 157 of 382 GB/s at
64 MiB, 198 at 128 MiB (same)."""
LINK_HALF: Bytes = 24 << 20
"""Published: the same within a node: 276 of 482 GB/s at 32 MiB (same)."""
HIDDEN_SHARE = 0.8
"""Assumed: of a micro-batch's computing, time behind which gathers and reductions can hide."""
_FORWARD_BACKWARD = 3
_ATTENTION_BACKWARD = 2.5
_SCORE_PASSES = 10
"""Reads and writes of the scores, forward and backward, where attention is not fused: the product
writes, the softmax reads and writes, dropout too, the product reads; the same backward."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device gives a training step, FLOP/s and bytes/s."""

    products: float
    memory: float
    link: float
    network: float
    node_devices: int

    @classmethod
    def of(cls, device: Device, element: Format, efficiency: float) -> "Rates":
        """Rates of `device` for products of `element`, with the fitted `efficiency` of products."""
        return cls(
            efficiency * best_product(device, element),
            MEMORY_SHARE * device.memory_rate,
            LINK_SHARE * device.link_rate,
            NETWORK_SHARE * device.network_rate,
            device.node_devices,
        )


def best_product(device: Device, element: Format) -> float:
    """Largest rate of a matrix product that is known of a device, FLOP/s."""
    known = device.best_product.get(element)
    if known is None and element == "fp16":
        known = device.best_product.get("bf16")
    return known or BEST_OF_PEAK * device.peak[element]


def efficiency_of(device: Device) -> tuple[float, Basis, str]:
    """The efficiency of products where none was measured, whence it is, and its source."""
    fitted = FITTED.get(device.key.partition("-")[0])
    if fitted is None:
        return EFFICIENCY, "assumed", "no run of this device was calibrated (--calibrate RUN)"
    return fitted, "published", "fitted to published runs, docs/planning.md"


def element_of(recipe: Recipe, device: Device) -> Format:
    """The format of products; `auto` is the fastest of bf16 and float32 that the device has."""
    precision, wanted = recipe.precision, recipe.precision.compute
    element: Format
    if precision.float8:
        element = "fp8"
    elif wanted == "auto":
        element = max(("fp32", "bf16"), key=lambda name: device.peak.get(name, 0.0))
    elif wanted == "float32":
        element = "tf32" if precision.tf32 and "tf32" in device.peak else "fp32"
    else:
        element = "fp16" if wanted.startswith("fp16") else "bf16"
    if element not in device.peak:
        known = ", ".join(device.peak)
        raise UsageError(
            f"precision: {device.key} has no units for {element}",
            f"it has {known}: set precision.compute, or take another device",
        )
    return element


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, by what they go to; they add up."""

    products: Seconds
    attention: Seconds
    elementwise: Seconds
    tensor_links: Seconds
    data_links: Seconds
    """What gathering and reducing takes beyond that which hides behind computing."""
    pipeline_links: Seconds
    bubble: Seconds
    update: Seconds

    @property
    def total(self) -> Seconds:
        """Of the step."""
        return math.fsum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, Seconds]:
        """Name → seconds."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(frozen=True)
class StepModel:
    """A recipe on so many devices in one layout."""

    recipe: Recipe
    vocab_size: int
    layout: Layout
    rates: Rates
    micro_sequences: int
    practice: Practice = LONGHAUL
    element_bytes: Bytes = 2
    """Of activations and gathered weights."""
    stages_per_rank: int | None = None
    """Stretches of each rank of a pipeline; None: as the recipe says."""

    @cached_property
    def size(self) -> ModelSize:
        """Parameters."""
        return model_size(self.recipe.model, self.vocab_size)

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.recipe.batch_stages()[-1].sequence_length

    @property
    def tokens_per_step(self) -> int:
        """Of the last stage of the batch, in which a run spends most of its time."""
        stage = self.recipe.batch_stages()[-1]
        return stage.sequences * stage.sequence_length

    @property
    def micro_batches(self) -> int:
        """That a data rank computes in a step."""
        own = math.ceil(self.recipe.batch_stages()[-1].sequences / self.layout.data_size)
        return math.ceil(own / self.micro_sequences)

    @property
    def tokens(self) -> int:
        """T."""
        return self.micro_sequences * self.length

    def step_time(self) -> StepTime:
        """The step, part by part."""
        layers, head = self._layer(), self._head()
        stages, m = self.layout.pipeline, self.micro_batches
        each = self.recipe.model.layers / stages
        count, share = float(math.ceil(each)), 1.0
        if self.practice.balanced_stages:
            count, share = each, 1 / stages
        own = {name: count * layers[name] + share * head.get(name, 0.0) for name in layers}
        stage_s = math.fsum(own.values())
        computing = {name: m * seconds for name, seconds in own.items()}
        virtual = self.stages_per_rank or self.recipe.parallel.stages_per_rank
        return StepTime(
            products=computing["products"],
            attention=computing["attention"],
            elementwise=computing["elementwise"],
            tensor_links=computing["tensor_links"],
            data_links=self._data_links(stage_s, m),
            pipeline_links=m * self._sends(),
            bubble=(stages - 1) / virtual * stage_s,
            update=self._update(),
        )

    def mfu(self, peak: float) -> float:
        """Model FLOPs utilisation, 0 to 1, against a device's `peak` (PaLM, appendix B)."""
        flops = self.size.flops_per_token(self.length) * self.tokens_per_step
        return flops / (self.step_time().total * self.layout.size * peak)

    def _product(self, rows: float, inner: float, columns: float) -> Seconds:
        """One product [rows, inner] × [inner, columns]; the longer of computing and moving."""
        moved = self.element_bytes * (rows * inner + inner * columns + rows * columns)
        return max(
            2 * rows * inner * columns / self.rates.products,
            moved / self.rates.memory,
        )

    def _passes(self) -> float:
        """Forward passes' worth of a layer's products in forward and backward pass."""
        how = self.recipe.machine.activation_checkpointing
        half = how == "selective" and self.practice.alternate_products
        return _FORWARD_BACKWARD + (how == "full") + 0.5 * half

    def _layer(self) -> dict[str, Seconds]:
        """Seconds of one layer, forward and backward, for one micro-batch."""
        model, ways, rows = self.recipe.model, self.layout.tensor, self.tokens
        keys = model.key_heads * model.key_width
        mixed, up = model.heads_width + 2 * keys, model.inner_width * (1 + model.gated)
        products = (
            self._product(rows, model.width, mixed / ways)
            + self._product(rows, model.heads_width / ways, model.width)
            + self._product(rows, model.width, up / ways)
            + self._product(rows, model.inner_width / ways, model.width)
        )
        # What goes into a sum over ranks is not kept (`parallel/recompute.py`).
        how = self.recipe.machine.activation_checkpointing
        again = how == "selective" and ways > 1 and self.practice is LONGHAUL
        out = self._product(rows, model.heads_width / ways, model.width) if again else 0.0
        return {
            "products": self._passes() * products + out,
            "attention": self._attention(),
            "elementwise": self._elementwise(),
            "tensor_links": self._tensor_links(),
        }

    def _attention(self) -> Seconds:
        """Scores, softmax and values of an average layer."""
        model, ways = self.recipe.model, self.layout.tensor
        windows = [window or self.length for window in self.size.windows]
        seen = sum(min(self.length, window) for window in windows) / len(windows)
        again = self.recipe.machine.activation_checkpointing
        passes = 1 + _ATTENTION_BACKWARD + (again == "full")
        rate = self.rates.products * ATTENTION_OF_PRODUCTS
        flops = 4 * self.tokens * seen * model.heads_width / ways
        if self.practice.fused_attention:
            return passes * flops * (1 - seen / (2 * self.length)) / rate
        scores = self.tokens * self.length * model.heads / ways
        moved = (_SCORE_PASSES + 5 * (again != "none")) * self.element_bytes * scores
        whole = passes * 4 * self.tokens * self.length * model.heads_width / ways
        return whole / rate + moved / self.rates.memory

    def _elementwise(self) -> Seconds:
        """Norms, residual sums, rotation and activation: what they read and write."""
        model, ways = self.recipe.model, self.layout.tensor
        shared = ways if self.practice.sequence_parallel else 1
        # A norm reads and writes, a sum reads two and writes one: twice each in a layer.
        stream = model.width * (2 * 2 + 2 * 3 + 4 * bool(model.dropout)) / shared
        rotated = 2 * (model.heads_width + model.key_heads * model.key_width) / ways
        bent = model.inner_width * (3 if model.gated else 2) / ways
        forward = stream + rotated + bent
        again = self.recipe.machine.activation_checkpointing != "none"
        passes = (_FORWARD_BACKWARD + again) * (1.0 if self.practice.fused_elementwise else 1.5)
        return passes * forward * self.tokens * self.element_bytes / self.rates.memory

    def _tensor_links(self) -> Seconds:
        """Gathers and scatters among tensor ranks: two of each forward, two of each backward."""
        ways = self.layout.tensor
        if ways == 1:
            return 0.0
        payload = self.tokens * self.recipe.model.width * self.element_bytes
        rate = self.rates.link * payload / (payload + LINK_HALF)
        if ways > self.rates.node_devices:
            rate = self.rates.network * payload / (payload + NETWORK_HALF)
        moved = (ways - 1) / ways * payload
        again = self.recipe.machine.activation_checkpointing == "full"
        return (8 + 3 * again) * moved / rate

    def _head(self) -> dict[str, Seconds]:
        """Logits and loss of one micro-batch."""
        columns = self.recipe.model.padded_vocab(self.vocab_size) / self.layout.tensor
        width = self.recipe.model.table_width
        products = _FORWARD_BACKWARD * self._product(self.tokens, width, columns)
        # The loss reads the logits, and writes and reads their gradient, in float32 at most.
        moved = 4 * 4 * self.tokens * columns / self.rates.memory
        return {"products": products, "elementwise": moved}

    def _sends(self) -> Seconds:
        """What a stage sends and receives for a micro-batch, forward and backward."""
        if self.layout.pipeline == 1:
            return 0.0
        shared = self.layout.tensor if self.practice.sequence_parallel else 1
        moved = self.tokens * self.recipe.model.width * self.element_bytes / shared
        virtual = self.stages_per_rank or self.recipe.parallel.stages_per_rank
        return 2 * virtual * moved / self.rates.network

    def _own_parameters(self) -> float:
        """Of a stage's tensor rank, before they are sharded."""
        return self.size.total / (self.layout.tensor * self.layout.pipeline)

    def _data_links(self, stage_s: Seconds, micro_batches: int) -> Seconds:
        """Beyond what hides behind `stage_s` of computing for each micro-batch."""
        shard, replicas = self.layout.shard, self.layout.replicate
        own, hidden = self._own_parameters(), HIDDEN_SHARE * stage_s
        reduced = 4 if self.recipe.parallel.reduce == "float32" else self.element_bytes
        gathered = self.element_bytes * own * (shard - 1) / shard
        scattered = reduced * own * (shard - 1) / shard
        rate = self._rate_over(shard, 1)
        all_reduce = 2 * reduced * own / shard * (replicas - 1) / replicas
        at_end = all_reduce / self._rate_over(replicas, shard) if replicas > 1 else 0.0
        if self.practice.gathers == "micro-batch":
            # Layer by layer, each a collective of its own.
            payload = self.size.blocks / self.recipe.model.layers / self.layout.tensor
            payload *= self.element_bytes
            within = shard * self.layout.tensor <= self.rates.node_devices
            half = LINK_HALF if within else NETWORK_HALF
            rate *= payload / (payload + half)
            gathers = 2 if self.recipe.parallel.reshard_after_forward else 1
            each = (gathers * gathered + scattered) / rate
            return micro_batches * max(0.0, each - hidden) + max(0.0, at_end - hidden)
        once = (gathered if self.practice.gathers == "step" else 0.0) + scattered
        return max(0.0, once / rate - hidden) + max(0.0, at_end - hidden)

    def _rate_over(self, ways: int, inner: int) -> float:
        """Bytes/s of a collective over `ways` ranks that lie `inner` × tensor ranks apart."""
        if ways == 1:
            return math.inf
        if ways * inner * self.layout.tensor <= self.rates.node_devices:
            return self.rates.link
        # A ring enters and leaves each node once for all its ranks, which share its adapters.
        together = max(1, self.rates.node_devices // (self.layout.tensor * inner))
        return min(self.rates.link, self.rates.network * min(together, ways))

    def _update(self) -> Seconds:
        """Reads weight, gradient and two moments; writes weight and moments: float32."""
        own = self._own_parameters() / self.layout.shard
        return 28 * own / self.rates.memory
