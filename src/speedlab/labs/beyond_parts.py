"""Where the microseconds of a step go: each part of the fastest recipe alone, beside other ways to compute it.

Sizes are those of the recipe's whole batch. Nothing is added up here; whoever reads the rows multiplies by layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from speedlab.beyond import FASTEST
from speedlab.labs.beyond_budget import budget_ms, in_words
from speedlab.labs.rows import attempt

REPEATS = 8
# What the kernels are tried with. Loss: whether the row is held, columns at a time, warps, stages of the pipeline.
LOSS_FORMS = (
    (False, 2048, 4, 1), (False, 4096, 8, 1), (False, 4096, 8, 3), (False, 8192, 8, 1), (False, 8192, 16, 1),
    (False, 8192, 16, 3), (False, 16384, 16, 2), (False, 16384, 32, 1), (False, 16384, 32, 3), (True, 0, 16, 1),
    (True, 0, 16, 2), (True, 0, 32, 1), (True, 0, 32, 2),
)  # fmt: skip
# Rows at a time, warps, stages.
ROW_TILES = ((1, 4, 1), (1, 4, 2), (1, 4, 3), (1, 4, 4), (2, 4, 1), (2, 4, 2), (2, 4, 3), (4, 4, 2), (4, 8, 1))


def parts(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row for each part, pass and variant: `time_us` are samples of one call, `bytes` and `flops` are counted."""
    import torch

    recipe = bench.scaled(FASTEST)
    sizes = Sizes(bench.device, recipe)
    torch.manual_seed(recipe.seed)
    rows: list[dict[str, Any]] = []
    for group in (matmuls, attention, losses, gelu, norms, joins, embeddings, optimizers):
        for row in _guarded(group, sizes):
            say(in_words(row))
            rows.append(row)
            yield row
    budget = budget_ms(rows, recipe.num_layers)
    say(f"the fastest of each part in a step: {sum(budget.values()):.1f} ms; " + ", ".join(
        f"{part} {ms:.2f}" for part, ms in budget.items()
    ))  # fmt: skip


def _guarded(group: Callable[[Sizes], Iterator[dict[str, Any]]], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """The rows of a group; what fails between them, such as memory for its inputs, ends the group and not the run."""
    from torch._functorch import config as functorch_config

    try:
        # A compiled backward pass gives its inputs away unless it is told that it will be called again.
        with functorch_config.patch(donated_buffer=False):
            yield from group(sizes)
    except Exception as error:

        def fail(error: Exception = error) -> dict[str, Any]:
            raise error

        yield attempt(fail, part=group.__name__, way="set-up", variant="all")


class Sizes:
    """N tokens, C width, F inner width, V rows of the head, and tensors of the format that the matmuls run in."""

    def __init__(self, device: Any, recipe: Any) -> None:
        import torch

        self.device, self.recipe, self.torch = device, recipe, torch
        self.tokens = recipe.micro_batch * recipe.context_length
        self.width, self.inner, self.ids = recipe.embedding_width, 4 * recipe.embedding_width, recipe.padded_vocab_size

    def random(self, *shape: int, scale: float = 1.0, grad: bool = False) -> Any:
        values = scale * self.torch.randn(*shape, device=self.device, dtype=self.torch.bfloat16)
        return values.requires_grad_(grad)

    def row(self, part: str, way: str, variant: str, call: Callable[[], Any], **counted: Any) -> dict[str, Any]:
        """A row with samples of `call`, or with the reason why there are none. way: forward, backward, step …"""
        return attempt(lambda: {"time_us": self.samples_us(call)} | counted, part=part, way=way, variant=variant)

    def samples_us(self, call: Callable[[], Any]) -> list[float]:
        from speedlab.measuring.stopwatch import Stopwatch, synchronize

        for _ in range(2):
            call()
        synchronize(self.device)
        stopwatch = Stopwatch(self.device)
        stopwatch.mark()
        for _ in range(REPEATS):
            call()
            stopwatch.mark()
        return [1e3 * ms for ms in stopwatch.step_ms()]

    def backward(self, output: Any, leaves: list[Any]) -> Callable[[], Any]:
        """Calls the backward pass of one forward pass again and again."""
        gradients = [self.torch.randn_like(out) for out in (output if isinstance(output, tuple) else (output,))]
        outputs = list(output) if isinstance(output, tuple) else [output]
        return lambda: self.torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)


def matmuls(sizes: Sizes) -> Iterator[dict[str, Any]]:
    C, F, N = sizes.width, sizes.inner, sizes.tokens
    for name, out, into in (("qkv", 3 * C, C), ("out", C, C), ("up", F, C), ("down", C, F), ("head", sizes.ids, C)):
        x, weight, bias = sizes.random(N, into), sizes.random(out, into, scale=0.02), sizes.random(out)
        dy, flops = sizes.random(N, out, scale=1e-3), 2.0 * N * out * into
        yield sizes.row(name, "forward", "matmul", partial(sizes.torch.nn.functional.linear, x, weight), flops=flops)
        if name != "head":
            call = partial(sizes.torch.nn.functional.linear, x, weight, bias)
            yield sizes.row(name, "forward", "matmul with bias", call, flops=flops)
        for library in ("cublas", "cublaslt") if sizes.device.type == "cuda" else (None,):
            variant = "matmul" if library is None else f"matmul, {library}"
            with _blas(sizes.torch, library):
                if library == "cublaslt":
                    call = partial(sizes.torch.nn.functional.linear, x, weight)
                    yield sizes.row(name, "forward", variant, call, flops=flops)
                yield sizes.row(name, "input gradient", variant, lambda dy=dy, w=weight: dy @ w, flops=flops)
                yield sizes.row(name, "weight gradient", variant, lambda dy=dy, x=x: dy.t() @ x, flops=flops)
        yield sizes.row(name, "bias gradient", "sum", lambda dy=dy: dy.sum(dim=0), bytes=2.0 * N * out)


@contextmanager
def _blas(torch: Any, library: str | None) -> Iterator[None]:
    """Matmuls by this library of NVIDIA's while it lasts; None: by PyTorch's choice."""
    if library is None:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def attention(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.model.attention import ATTENTION, split_heads

    recipe, C = sizes.recipe, sizes.width
    for layout in ("packed", "apart"):
        qkv = sizes.random(recipe.micro_batch, recipe.context_length, 3 * C, grad=True)
        given = qkv.chunk(3, dim=-1) if layout == "packed" else [part.contiguous() for part in qkv.chunk(3, dim=-1)]
        leaves = [split_heads(part, recipe.num_heads).detach().requires_grad_() for part in given]
        for name in ("sdpa", "sdpa_cudnn", "sdpa_flash"):
            attend = ATTENTION[name](recipe)
            yield sizes.row("attention", "forward", f"{name}, {layout}", lambda a=attend, q=leaves: a(*q))

            def backward(attend: Any = attend, leaves: list[Any] = leaves) -> dict[str, Any]:
                output = attend(*leaves)
                gradients = sizes.torch.autograd.grad(output, leaves, sizes.torch.randn_like(output), retain_graph=True)
                strides = [list(gradient.stride()) for gradient in gradients]
                return {"time_us": sizes.samples_us(sizes.backward(output, leaves)), "gradient_strides": strides}

            yield attempt(backward, part="attention", way="backward", variant=f"{name}, {layout}")


def losses(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.fused import cross_entropy
    from speedlab.training.losses import liger_loss, token_loss

    torch = sizes.torch
    logits = sizes.random(sizes.tokens, sizes.ids)
    targets = torch.randint(0, sizes.ids, (sizes.tokens,), device=sizes.device)
    least = 2.0 * 2 * logits.numel()  # one reading and one writing

    def with_backward(loss: Callable, logits: Any) -> None:
        leaf = logits.detach().requires_grad_()
        loss(leaf, targets).backward()

    compiled = torch.compile(lambda logits, targets: token_loss(logits[None], targets[None]), dynamic=False)
    yield sizes.row("loss", "both", "compiled", lambda: with_backward(compiled, logits), bytes=least)
    liger = partial(with_backward, lambda logits, targets: liger_loss(logits[None], targets[None]), logits)
    yield sizes.row("loss", "both", "Liger, in place", liger, bytes=least)
    plain = partial(cross_entropy.losses_and_gradient, logits, targets, 1.0)
    yield sizes.row("loss", "both", "in place", plain, bytes=least)
    factor = torch.ones((), device=sizes.device)
    scale = partial(cross_entropy.scale_in_place, logits, factor)
    yield sizes.row("loss", "both", "scaling by one", scale, bytes=0.0)
    if not logits.is_cuda:
        return
    from speedlab.fused.cross_entropy_kernel import Form, losses_and_gradient

    for form in map(Form._make, LOSS_FORMS):
        call = partial(losses_and_gradient, logits, targets, 1.0, form)
        way = "held" if form.held else f"{form.block} columns"
        words = f"in place, {way}, {form.num_warps} warps, {form.stages} stages"
        yield sizes.row("loss", "both", words, call, bytes=least)


def gelu(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.fused.gelu import bias_gelu

    torch = sizes.torch
    x, bias = sizes.random(sizes.tokens, sizes.inner, grad=True), sizes.random(sizes.inner, grad=True)
    once = 2.0 * x.numel()

    def sigmoid(x: Any, bias: Any) -> Any:
        z = (x + bias).float()
        return (z * torch.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))).to(x.dtype)

    def tanh(x: Any, bias: Any) -> Any:
        return torch.nn.functional.gelu(x + bias, approximate="tanh")

    for variant, call in (
        ("compiled tanh", torch.compile(tanh, dynamic=False)),
        ("compiled sigmoid", torch.compile(sigmoid, dynamic=False)),
        ("fused", bias_gelu),
    ):
        yield sizes.row("gelu", "forward", variant, lambda call=call: call(x, bias), bytes=2 * once)
        backward = lambda call=call: {"time_us": sizes.samples_us(sizes.backward(call(x, bias), [x, bias]))}  # noqa: E731
        yield attempt(backward, part="gelu", way="backward", variant=variant, bytes=3 * once)
    if x.is_cuda:
        from speedlab.fused import gelu_kernel

        yield from _row_tiles(sizes, "gelu", gelu_kernel, lambda: gelu_kernel.forward(x, bias),
                              lambda: gelu_kernel.backward(x, x, bias))  # fmt: skip


def norms(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.fused.residual_norm import residual_norm

    torch, C = sizes.torch, sizes.width
    x, delta = sizes.random(sizes.tokens, C, grad=True), sizes.random(sizes.tokens, C, grad=True)
    bias, weight, shift = (sizes.random(C, grad=True) for _ in range(3))
    leaves, once = [x, delta, bias, weight, shift], 2.0 * x.numel()

    def plain(x: Any, delta: Any, bias: Any, weight: Any, shift: Any) -> tuple[Any, Any]:
        z = x + (delta + bias)
        return z, torch.nn.functional.layer_norm(z, (C,), weight, shift, 1e-5)

    for variant, call in (
        ("compiled", torch.compile(plain, dynamic=False)), ("fused", lambda *given: residual_norm(*given, 1e-5)),
    ):  # fmt: skip
        yield sizes.row("residual_norm", "forward", variant, lambda call=call: call(*leaves), bytes=4 * once)
        backward = lambda call=call: {"time_us": sizes.samples_us(sizes.backward(call(*leaves), leaves))}  # noqa: E731
        yield attempt(backward, part="residual_norm", way="backward", variant=variant, bytes=4 * once)
    if x.is_cuda:
        from speedlab.fused import residual_norm_kernel as kernel

        z, y, mean, scale = kernel.forward(*(leaf.detach() for leaf in leaves), 1e-5)
        yield from _row_tiles(sizes, "residual_norm", kernel, lambda: kernel.forward(*leaves, 1e-5),
                              lambda: kernel.backward(z, y, z, weight, mean, scale))  # fmt: skip


def _row_tiles(sizes: Sizes, part: str, kernel: Any, forward: Callable, backward: Callable) -> Iterator[dict[str, Any]]:
    """Both passes of a kernel with other tiles than its own, which it has back in the end."""
    own = kernel.FORWARD_ROWS, kernel.BACKWARD_ROWS, kernel.NUM_WARPS, kernel.STAGES
    try:
        for rows, warps, stages in ROW_TILES:
            kernel.FORWARD_ROWS = kernel.BACKWARD_ROWS = rows
            kernel.NUM_WARPS, kernel.STAGES = warps, stages
            with sizes.torch.no_grad():
                if stages == 1:
                    yield sizes.row(part, "forward", f"fused, {rows} rows, {warps} warps", forward)
                yield sizes.row(part, "backward", f"fused, {rows} rows, {warps} warps, {stages} stages", backward)
    finally:
        kernel.FORWARD_ROWS, kernel.BACKWARD_ROWS, kernel.NUM_WARPS, kernel.STAGES = own


def joins(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.fused.qkv import _join

    q, k, v = (sizes.random(sizes.tokens, sizes.width) for _ in range(3))

    def joined_and_summed() -> Any:
        joined = sizes.torch.cat([q, k, v], dim=-1)
        return joined, joined.sum(dim=0)

    once = 2.0 * 3 * q.numel()
    compiled = sizes.torch.compile(joined_and_summed, dynamic=False)
    yield sizes.row("join q/k/v", "backward", "compiled", compiled, bytes=2 * once)
    yield sizes.row("join q/k/v", "backward", "fused", lambda: _join(q, k, v), bytes=2 * once)


def embeddings(sizes: Sizes) -> Iterator[dict[str, Any]]:
    torch = sizes.torch
    table = sizes.random(sizes.ids, sizes.width, grad=True)
    tokens = torch.randint(0, sizes.recipe.vocab_size, (sizes.tokens,), device=sizes.device)
    output = torch.nn.functional.embedding(tokens, table)
    yield sizes.row("embedding", "backward", "PyTorch", sizes.backward(output, [table]))


def optimizers(sizes: Sizes) -> Iterator[dict[str, Any]]:
    from speedlab.model import GPT
    from speedlab.training.optimizer import build_optimizer

    torch = sizes.torch
    for variant, optimizer, precision in (
        ("fused, float32", "fused", torch.float32), ("fused, bfloat16 alone", "fused", torch.bfloat16),
        ("fused, float32 masters", "fused", torch.bfloat16), ("one pass, float32 masters", "one_pass", torch.bfloat16),
    ):  # fmt: skip
        with sizes.device:
            model = GPT(sizes.recipe)
        masters = [p.detach().clone() for p in model.parameters()] if "masters" in variant else None
        model.to(precision)
        step = build_optimizer(sizes.recipe.but(optimizer=optimizer), list(model.parameters()), masters)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        yield sizes.row("AdamW", "step", variant, step.step)
