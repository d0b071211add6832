"""A recipe holds every choice that decides how fast a step is; it knows nothing of how a choice is made real.

Frozen, flat and made of plain values, so that two recipes can be compared field by field and stored as JSON.
Each default is the slow, plain value; an optimization is a recipe with one field changed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from speedlab.errors import BadInput, check_choice

# The values a field may take, slow and plain first. Fields that are not listed are numbers.
CHOICES: dict[str, tuple[Any, ...]] = {
    "output_head": ("untied", "tied"),
    "qkv_bias": (False, True),
    "causal_mask": ("stored", "on_the_fly"),
    "matmul_precision": ("highest", "high"),
    "optimizer": ("for_loop", "default", "foreach", "fused", "one_pass"),
    "host_memory": ("pageable", "pinned", "pinned_non_blocking", "double_buffered"),
    "precision": ("float32", "bfloat16", "bfloat16_master", "bfloat16_autocast", "float16_autocast"),
    "layers": ("handwritten", "native"),
    "attention": ("plain", "sdpa", "sdpa_math", "sdpa_efficient", "sdpa_flash", "sdpa_cudnn"),
    "qkv_projection": ("separate", "merged"),
    "compile": ("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "vocabulary": ("exact", "padded"),
    "checkpointing": ("off", "every_block", "every_second_block", "feed_forward", "selective", "offload"),
    "loss": ("plain", "compiled", "liger", "in_place"),
    "feed_forward": ("separate", "sigmoid", "fused"),
    "residual": ("separate", "fused"),
    "qkv_backward": ("separate", "fused"),
    "compile_options": ("none", "coordinate_descent", "no_mix_order_reduction"),
    "head_matmul": ("same", "fp8_forward"),
    "sharding": ("replicated", "fsdp2", "independent"),
    "gradient_exchange": ("weights_dtype", "bfloat16", "off"),
    "bucket_view": (False, True),
    "static_graph": (False, True),
    "compile_order": ("after_ddp", "before_ddp"),
    "optimize_ddp": (True, False),
}

# Padding to a multiple of 64 ids keeps every row of the logits on a 128-byte boundary in 16-bit types.
VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training configuration. The defaults are GPT-2 "124M" as the published from-scratch program trains it.

    The output head is untied there, so the model holds 163 M parameters, not 124 M.
    """

    # Shape of the model.
    num_layers: int = 12
    embedding_width: int = 768
    num_heads: int = 12
    context_length: int = 1024
    vocab_size: int = 50_257  # ids that the tokenizer knows
    dropout: float = 0.1
    qkv_bias: bool = False
    output_head: str = "untied"

    # What the chapters change, one field each.
    causal_mask: str = "stored"  # read by "plain" attention alone
    matmul_precision: str = "highest"  # "high" lets float32 matmuls round their inputs to TF32
    optimizer: str = "default"  # "default" is what torch.optim.AdamW chooses on the device: foreach on CUDA
    host_memory: str = "pageable"
    precision: str = "float32"
    layers: str = "handwritten"
    attention: str = "plain"
    qkv_projection: str = "separate"
    compile: str = "off"
    vocabulary: str = "exact"  # "padded" rounds the rows of the table and the head up to a multiple of 64
    micro_batch: int = 8  # sequences per forward pass on each device
    data_parallel: int = 1  # processes, one GPU each

    # What ladder "beyond" changes.
    loss: str = "plain"  # "compiled": in one graph with the model; "in_place": the gradient takes the logits' place
    feed_forward: str = "separate"  # "sigmoid": GELU written by a sigmoid; "fused": with its bias in one kernel
    residual: str = "separate"  # "fused": residual addition, bias and LayerNorm in one kernel each way
    qkv_backward: str = "separate"  # "fused": gradients joined and their bias gradient summed in one kernel
    compile_options: str = "none"
    head_matmul: str = "same"

    # How several processes work together; without meaning for one. Each default is PyTorch's own.
    sharding: str = "replicated"  # DDP; "fsdp2" splits the state; "independent" exchanges nothing, for comparison
    gradient_exchange: str = "weights_dtype"  # number format on the link; "off" only shows the cost of the rest of DDP
    gradient_bucket_mb: int = 25  # MiB of gradients that are sent together
    bucket_view: bool = False  # gradients live in the buckets, so that none is copied there
    static_graph: bool = False  # promise that every step uses the same weights in the same way
    compile_order: str = "after_ddp"  # compile(DDP(model)), or DDP(compile(model))
    optimize_ddp: bool = True  # torch.compile cuts its graph where a bucket is full
    communication_blocks: int = 0  # most thread blocks that NCCL takes from the matmuls; 0 for as many as it likes

    # Not a rung of the ten chapters.
    accumulation: int = 1  # micro-batches per optimizer step
    checkpointing: str = "off"  # which activations are not kept for the backward pass
    gradient_clip: float = 0.0  # largest norm of all gradients of a step together; 0 leaves them as they are
    learning_rate: float = 5e-4
    weight_decay: float = 0.1
    seed: int = 1234

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            check_choice(f"value for recipe field {name}:", value, choices)
            if type(value) is not type(choices[0]):  # 1 == True, but it is not what a record should hold
                raise BadInput(f"recipe field {name} is {value!r}: write {' or '.join(map(str, choices))}")
        for name in (
            "num_layers", "embedding_width", "num_heads", "context_length", "vocab_size",
            "micro_batch", "data_parallel", "accumulation", "gradient_bucket_mb",
        ):  # fmt: skip
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadInput(f"recipe field {name} is {value!r}: it must be a whole number of at least 1")
        for name, low, high in (
            ("dropout", 0.0, 1.0), ("learning_rate", 0.0, 10.0), ("weight_decay", 0.0, 10.0),
            ("gradient_clip", 0.0, 1e6),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
                raise BadInput(f"recipe field {name} is {value!r}: it must be a number from {low} to below {high}")
        for name in ("seed", "communication_blocks"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise BadInput(
                    f"recipe field {name} is {getattr(self, name)!r}: it must be a whole number of at least 0"
                )
        if self.embedding_width % self.num_heads:
            raise BadInput(
                f"embedding_width {self.embedding_width} cannot be split over num_heads {self.num_heads}: "
                "choose a width that is a multiple of the number of heads"
            )

    @property
    def head_width(self) -> int:
        return self.embedding_width // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token table and of the output head."""
        if self.vocabulary == "exact":
            return self.vocab_size
        return math.ceil(self.vocab_size / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all processes. The only place where this product is formed."""
        return self.micro_batch * self.context_length * self.accumulation * self.data_parallel

    def but(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed; an unknown field is an error that lists the known ones."""
        _check_field_names(changes)
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def fastest(cls, machine: Any = None) -> Recipe:
        """Preset `fastest` as `machine` (`device.Capabilities`; None: this one) can run it."""
        from speedlab.presets import preset_for

        return preset_for("fastest", machine)[0]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The recipe with these values; fields that are absent take their defaults."""
        _check_field_names(values)
        return cls(**values)


def _check_field_names(values: dict[str, Any]) -> None:
    known = [f.name for f in fields(Recipe)]
    for name in values:
        check_choice("recipe field", name, known)


def changes(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """The fields in which two recipes differ, as {field: (value before, value after)}."""
    one, two = before.as_dict(), after.as_dict()
    return {name: (one[name], two[name]) for name in one if one[name] != two[name]}


def one_line_diff(before: Recipe, after: Recipe) -> str:
    """The change as a reader would write it: ``attention: "plain" -> "sdpa"``."""
    return ", ".join(f"{name}: {_quoted(a)} -> {_quoted(b)}" for name, (a, b) in changes(before, after).items())


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
