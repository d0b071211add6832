"""The levers of lab "together" on models of Hugging Face, by `speedlab.measure`: the stopwatch for anybody's step.

Models come from configurations written here, with random weights; nothing is downloaded. Needs extra "hf".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speedlab.errors import NotAvailable
from speedlab.labs.data_feeds import mapped
from speedlab.labs.rows import attempt
from speedlab.measuring.memory import free_everything
from speedlab.measuring.own_step import measure
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe

Row = dict[str, Any]
MODELS = ("GPT-2", "Llama")
# A model of about 124 M weights, read with this micro-batch; `Recipe` only carries the shape to the profile.
SHAPE = Recipe(context_length=1024, micro_batch=8, dropout=0.0)
INSTALL = "transformers and accelerate are not installed: pip install 'speedlab[hf]'"
STEPS, WARMUP_STEPS, TOY_STEPS = 8, 1, 2
COMPARED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Levers:
    """What a user of these libraries switches. attention: `attn_implementation`. accumulation: micro-batches of one
    update, each so much smaller."""

    attention: str = "eager"
    checkpointing: bool = False
    mixed_precision: str = "no"
    accumulation: int = 1
    host_memory: str = "pageable"


ALL = Levers(
    attention="sdpa", checkpointing=True, mixed_precision="bf16", accumulation=2, host_memory="double_buffered"
)
VARIANTS: dict[str, Levers] = {
    "baseline": Levers(),
    "attn_implementation sdpa": Levers(attention="sdpa"),
    "gradient checkpointing": Levers(checkpointing=True),
    "Accelerate bf16": Levers(mixed_precision="bf16"),
    "Accelerate accumulate": Levers(accumulation=2),
    "pipeline": Levers(host_memory="double_buffered"),
    "sdpa, bf16": Levers(attention="sdpa", mixed_precision="bf16"),
    "all": ALL,
}


def together_hf(bench: Workbench, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows: model, variant, the levers, step_ms, tokens_per_step, peak bytes, losses of the first steps, versions."""
    shape = bench.scaled(SHAPE)
    for model in MODELS:
        for variant, levers in VARIANTS.items():
            say(f"{model}: {variant}")
            try:
                yield attempt(
                    lambda model=model, levers=levers: _timed(bench, shape, model, levers),
                    what="hf", model=model, variant=variant, attention=levers.attention,
                    checkpointing=levers.checkpointing, mixed_precision=levers.mixed_precision,
                    accumulation=levers.accumulation, host_memory=levers.host_memory,
                    context_length=shape.context_length,
                )  # fmt: skip
            finally:
                if bench.device.type == "cuda":
                    free_everything(bench.device)


def build(name: str, shape: Recipe, levers: Levers) -> nn.Module:
    """The model in training mode, float32, without dropout, its weights drawn from seed `shape.seed`."""
    transformers = _libraries()[0]
    torch.manual_seed(shape.seed)
    if name == "GPT-2":
        config = transformers.GPT2Config(
            vocab_size=shape.vocab_size, n_positions=shape.context_length, n_embd=shape.embedding_width,
            n_layer=shape.num_layers, n_head=shape.num_heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=shape.vocab_size - 1, eos_token_id=shape.vocab_size - 1,
            attn_implementation=levers.attention, use_cache=False,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab_size, max_position_embeddings=shape.context_length,
            hidden_size=shape.embedding_width, intermediate_size=8 * shape.embedding_width // 3,
            num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
            bos_token_id=shape.vocab_size - 1, eos_token_id=shape.vocab_size - 1,
            attn_implementation=levers.attention, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    if levers.checkpointing:
        # transformers 5 gave `gradient_checkpointing_enable` another name and warns of the old one.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return model.train()


class AcceleratedStep:
    """One optimizer step as Accelerate's guide writes it: autocast, scaling and accumulation are the accelerator's."""

    def __init__(self, model: nn.Module, levers: Levers, device: torch.device, learning_rate: float) -> None:
        accelerate = _libraries()[1]
        self.accelerator = accelerate.Accelerator(
            mixed_precision=levers.mixed_precision, gradient_accumulation_steps=levers.accumulation,
            cpu=device.type == "cpu",
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=device.type == "cuda")
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.micro_steps = levers.accumulation

    def __call__(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """Take the micro-batches of one update; their mean loss, detached."""
        losses = []
        for _ in range(self.micro_steps):
            inputs_BT, targets_BT = next(batches)
            with self.accelerator.accumulate(self.model):
                # The targets are the inputs one token later already, and these models would shift them once more.
                logits_BTV = self.model(input_ids=inputs_BT).logits
                loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
                self.accelerator.backward(loss)  # divides by the number of micro-batches
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()


def _timed(bench: Workbench, shape: Recipe, name: str, levers: Levers) -> Row:
    transformers, accelerate = _libraries()
    step = None
    try:
        with bench.device:  # a CPU would take seconds to draw the weights
            model = build(name, shape, levers)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        step = AcceleratedStep(model, levers, bench.device, shape.learning_rate)
        on_gpu = bench.device.type == "cuda"
        # The same sequences in every variant, in one pass or in several.
        recipe = shape.but(micro_batch=max(1, shape.micro_batch // levers.accumulation))
        tokens_per_step = recipe.but(accumulation=levers.accumulation).tokens_per_step
        with mapped(bench.tokens.tokens, recipe, bench.device, carried=levers.host_memory) as batches:
            losses = torch.stack([step(batches) for _ in range(COMPARED_STEPS)]).tolist()
            found = measure(
                lambda: step(batches), tokens_per_step=tokens_per_step, kernels=False, device=bench.device.type,
                steps=STEPS if on_gpu else TOY_STEPS, warmup_steps=WARMUP_STEPS if on_gpu else 1,
            )  # fmt: skip
    finally:
        if step is not None:
            step.accelerator.free_memory()
        accelerate.state.AcceleratorState._reset_state(True)  # it keeps its settings for the whole process otherwise
    return {
        "parameters": parameters, "step_ms": found.step_ms, "tokens_per_step": tokens_per_step, "losses": losses,
        "peak_allocated_bytes": found.peak_allocated_bytes, "peak_reserved_bytes": found.peak_reserved_bytes,
        "transformers": transformers.__version__, "accelerate": accelerate.__version__,
    }  # fmt: skip


def _libraries() -> tuple[Any, Any]:
    """(transformers, accelerate); `NotAvailable` without them."""
    try:
        import accelerate
        import transformers
    except ImportError as error:
        raise NotAvailable(f"{INSTALL} ({error.name} is missing)") from error
    return transformers, accelerate
