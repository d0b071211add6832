"""One optimizer step: forward, loss, backward, update. Everything that is timed is in `TrainingStep.__call__`.

Shapes: B micro-batch, T tokens, V rows of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speedlab.fused.cross_entropy import in_place_cross_entropy
from speedlab.model import GPT, load_weights
from speedlab.recipe import Recipe
from speedlab.training.checkpointing import apply_checkpointing, check_parallel
from speedlab.training.losses import liger_loss, token_loss
from speedlab.training.optimizer import MasterWeights, build_optimizer, clip_gradients
from speedlab.training.parallel import Parallel
from speedlab.training.precision import autocast, matmul_precision, precision_of

Batch = tuple[Tensor, Tensor]  # token ids and the ids that follow them, int64 (B, T) each


def loss_function(recipe: Recipe) -> Callable[[Tensor, Tensor], Tensor]:
    """What the recipe field `loss` stands for: (logits (B, T, V), ids (B, T)) -> mean loss in nats."""
    return {
        "plain": token_loss, "compiled": token_loss, "liger": liger_loss, "in_place": in_place_cross_entropy,
    }[recipe.loss]  # fmt: skip


@torch.no_grad()
def loss_over_true_ids(logits_BTV: Tensor, targets_BT: Tensor, vocab_size: int) -> Tensor:
    """The same loss in float32 over the ids that exist, so that padded and exact vocabularies can be compared.

    One sequence at a time: a float32 copy of all logits would be the largest tensor of the whole step.
    """
    rows = zip(logits_BTV, targets_BT, strict=True)
    return torch.stack([F.cross_entropy(row[:, :vocab_size].float(), target) for row, target in rows]).mean()


class WithLoss(nn.Module):
    """A model and its loss as one module, so that the compiler sees both: token ids -> (logits, loss).

    The logits come without a gradient: through them none is wanted, and it would be a tensor of zeros of their size.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        logits_BTV = self.model(tokens_BT)
        return logits_BTV.detach(), token_loss(logits_BTV, targets_BT)


# What a recipe may add to the settings of a compile mode, as torch._inductor knows them.
COMPILE_OPTIONS: dict[str, dict[str, bool]] = {
    "none": {},
    "coordinate_descent": {"coordinate_descent_tuning": True},
    "no_mix_order_reduction": {"triton.mix_order_reduction": False},
}


def compile_model(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The model as `torch.compile` makes it, or as it is. Static shapes: another batch size is another graph."""
    if recipe.compile == "off":
        return model
    if recipe.compile.startswith("max-autotune"):
        _quiet_autotuning()
    mode = None if recipe.compile == "default" else recipe.compile
    own = COMPILE_OPTIONS[recipe.compile_options]
    if not own:
        return torch.compile(model, mode=mode, dynamic=False)
    # torch.compile takes a mode or options; a mode is a name for options.
    return torch.compile(model, options=torch._inductor.list_mode_options(mode or "default") | own, dynamic=False)


def _quiet_autotuning() -> None:
    """Keep the trial of each kernel, and those that do not fit the card, off the screen: thousands of lines."""
    from torch._inductor import select_algorithm

    select_algorithm.PRINT_AUTOTUNE = False
    select_algorithm.log.setLevel(logging.CRITICAL)


class TrainingStep:
    """A model, its optimizer and the step that trains it, as one recipe says.

    weights: canonical weights to start from (`draw_weights`). parallelize: makes the model one of several processes,
    (recipe, model, compile) -> `Parallel`; None trains alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        weights: dict[str, Tensor],
        device: torch.device,
        *,
        parallelize: Callable[[Recipe, nn.Module, Callable[[nn.Module], nn.Module]], Parallel] | None = None,
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.precision = precision_of(recipe)
        with device:  # a CPU would take seconds to draw the weights that are overwritten here
            self.model = GPT(recipe)
        load_weights(self.model, weights)
        # Copied before the cast, so that they start from the full weights.
        masters = [p.detach().clone() for p in self.model.parameters()] if self.precision.masters else None
        self.model.to(dtype=self.precision.weights)
        apply_checkpointing(recipe, self.model)
        if parallelize:
            check_parallel(recipe)
        # In one graph with the model, the loss is computed there; every other form takes the logits that come out.
        self.loss_is_compiled = recipe.loss == "compiled" and recipe.compile != "off"

        def compiled(model: nn.Module) -> nn.Module:
            return compile_model(recipe, WithLoss(model) if self.loss_is_compiled else model)

        self.parallel = parallelize(recipe, self.model, compiled) if parallelize else None
        self.forward = self.parallel.forward if self.parallel else compiled(self.model)
        # After the model was shared out: FSDP2 puts other parameters in the place of these.
        self.optimizer = build_optimizer(recipe, self.model.parameters(), masters)
        self.scaler = torch.amp.GradScaler(device.type) if self.precision.scaled else None
        self.calls = 0
        self.true_losses: list[Tensor] | None = None  # a list here makes each call append its `loss_over_true_ids`

    def __call__(self, batches: Iterator[Batch]) -> Tensor:
        """Take `accumulation` micro-batches from `batches`, make one update. Returns the mean loss, detached.

        Nothing here waits for the GPU, except the gradient scaler of float16, which has to look for overflow.
        """
        self.calls += 1
        with matmul_precision(self.recipe):
            self.optimizer.zero_grad(set_to_none=True)
            mean_loss = torch.zeros((), device=self.device)
            for micro_step in range(self.recipe.accumulation):
                last = micro_step + 1 == self.recipe.accumulation
                # Forward and backward: DDP decides in the forward pass whether the backward pass exchanges gradients.
                with nullcontext() if self.parallel is None else self.parallel.micro_step(last):
                    mean_loss += self._forward_backward(*next(batches)) / self.recipe.accumulation
            self.update()
            return mean_loss

    def update(self) -> None:
        """The optimizer's part of a step, once for all its micro-batches: unscale, clip, move the weights.

        The gradients are those of the mean loss by now, so the limit means the same however the batch was split up.
        """
        if self.scaler is None:
            if not isinstance(self.optimizer, MasterWeights):  # that clips the float32 gradients that it makes
                clip_gradients(self.recipe, self.model.parameters())
            self.optimizer.step()
            return
        if self.recipe.gradient_clip:
            self.scaler.unscale_(self.optimizer)  # otherwise the limit would be compared with scaled gradients
            clip_gradients(self.recipe, self.model.parameters())
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @property
    def skipped(self) -> int | None:
        """Calls so far that the gradient scaler left without an update; None without a scaler.

        Told by the optimizer's own count, which the scaler holds back where a gradient is not finite. Reading it waits
        for the device, so it stays out of timed windows.
        """
        if self.scaler is None:
            return None
        updates = max((int(state["step"]) for state in self.optimizer.state.values()), default=0)
        return self.calls - updates

    def _forward_backward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            if self.loss_is_compiled:
                logits_BTV, loss = self.forward(tokens_BT, targets_BT)
            else:
                logits_BTV = self.forward(tokens_BT)
            if self.true_losses is not None:  # before a loss that destroys the logits
                self.true_losses.append(loss_over_true_ids(logits_BTV, targets_BT, self.recipe.vocab_size))
            if not self.loss_is_compiled:
                loss = loss_function(self.recipe)(logits_BTV, targets_BT)
        del logits_BTV  # the backward pass does not need them, and they are the largest tensor of the step
        share = loss / self.recipe.accumulation
        (share if self.scaler is None else self.scaler.scale(share)).backward()
        return loss.detach()
