"""What really ran: the kernels of a step by the profiler, each with a kind. Chapters claim nothing that is not here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from speedlab.measuring.stopwatch import synchronize
from speedlab.recipe import Recipe
from speedlab.work import compute_dtype

# The profiler writes two lines to stderr each time it is used, which a notebook would show; 6 is above all its levels.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

INDUCTOR_MATMUL = r"^triton_(tem|mm|bmm)_"
# The first pattern that matches a kernel's name decides. GPU kernels: cuBLAS names its Tensor Core matmuls after the
# instruction (s884, s1688, s16816, hmma, wgmma "gmma") or their tiles (bf16, tf32), the others after the ordinary
# multiply-add (sgemm, simt, ffma); all of cuBLASLt's nvjet kernels are for Tensor Cores. Triton kernels made by
# inductor begin with triton_.
GPU_KINDS: tuple[tuple[str, str], ...] = (
    ("communication", r"^nccl|ncclDevKernel"),
    ("attention, cudnn", r"cudnn.*(sdpa|flash|fmha|mha)|fprop.*(sdpa|flash)|bprop.*(sdpa|flash)|cudnn_generated_fort"
     r"|cudnn::fusion::|unpack_cudnn"),
    ("attention, flash", r"flash_(fwd|bwd)|pytorch_flash|FlashAttn|FlashAttention(For|Back)ward"),
    ("attention, efficient", r"fmha_cutlass|AttentionKernel|AttentionBackwardKernel|PyTorchMemEffAttention"),
    ("optimizer", r"multi_tensor_apply|[Ff]usedAdam|adamw?_|amp_update_scale"),
    # What a library adds to its matmul as a kernel of its own multiplies nothing.
    ("reduction", r"splitKreduce"),
    ("element-wise", r"cublasLt::epilogue"),
    # Half-precision numbers can be multiplied without Tensor Cores too, and then the name holds both.
    ("matmul, ordinary", r"simt|_ffma_|f16_sgemm"),
    ("matmul, Tensor Cores", r"(nvjet|hmma|gmma|wgmma|s16816|s1688|s884|tf32|tensorop|bf16.*gemm|f16.*gemm|h\d+gemm"
     r"|xmma_gemm_b?f16)"),
    ("matmul, ordinary", r"(gemm|gemv|simt|cutlass|cublasLt)"),
    # Inductor's own matmul (max-autotune). Its name does not hold the number format: see `in_format`.
    ("matmul, Tensor Cores", INDUCTOR_MATMUL),
    # Our own, in `speedlab.fused`.
    ("fused", r"^(gelu|residual_norm)_(for|back)ward_kernel|^(join|scale)_kernel"),
    ("fused", r"^triton_"),
    ("normalization", r"[Ll]ayer_?[Nn]orm|GammaBeta"),
    ("softmax and loss", r"[Ss]oft_?[Mm]ax|nll_loss|cross_entropy"),
    ("embedding", r"[Ee]mbedding|indexSelect|index_select|gather|scatter|radixSort|DeviceRadix|DeviceScan"
     r"|DeviceReduceByKey|DeviceUniqueByKey|DeviceCompactInit|krn_partial|partial_segments|compute_grad_weight|sum_and_scatter"
     r"|index_elementwise|indexFunc|cub::.*EmptyKernel"),
    ("copy", r"^Memcpy|^Memset|copy_kernel|CatArrayBatchedCopy|direct_copy"),
    ("reduction", r"reduce_kernel|reduction|cumsum|DeviceReduce|DeviceSegmentedReduce"),
    ("element-wise", r"elementwise|vectorized|unrolled|triu_tril|fill|dropout|masked"),
)  # fmt: skip
CPU_KINDS: tuple[tuple[str, str], ...] = (
    ("communication", r"gloo:|c10d::|DistributedDataParallel"),
    ("attention, cpu", r"_scaled_dot_product_.*_for_cpu"),
    ("attention, math", r"_scaled_dot_product_attention_math"),
    ("optimizer", r"Optimizer\.|[Ff]used_?adam|_foreach_|addcdiv|addcmul|lerp"),
    ("matmul, ordinary", r"aten::(b?add)?b?mm\b|mkldnn_linear|aten::linear"),
    ("fused", r"^(graph_\d+_)?(cpp_|CompiledFunction|Torch-Compiled|## Call Compiled)"),
    ("normalization", r"layer_norm"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy"),
    ("embedding", r"embedding|index_select|gather|scatter"),
    ("copy", r"aten::(copy_|cat|_to_copy|contiguous|clone)"),
    ("reduction", r"aten::(sum|mean|var|max|norm)\b"),
    (
        "element-wise",
        r"aten::(add|sub|mul|div|pow|tanh|r?sqrt|gelu|neg|fill_|zero_|masked_fill|triu|exp|bernoulli)",
    ),
)


def kind_of(kernel: str, *, on_gpu: bool) -> str:
    """The kind of a kernel (GPU) or operator (CPU) by its name; "other" where no pattern fits."""
    for kind, pattern in GPU_KINDS if on_gpu else CPU_KINDS:
        if re.search(pattern, kernel):
            return kind
    return "other"


def kernel_table(step: Callable[[], Any], device: torch.device, steps: int = 2) -> list[dict[str, Any]]:
    """Profile `steps` calls of `step` and return, per step and longest first, {name, kind, calls, time_us}.

    On CUDA these are the kernels on the card; on a CPU the operators with their own time, children excluded.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    synchronize(device)
    with profile(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            step()
        synchronize(device)
    return kernel_rows(profiler.key_averages(), steps, on_gpu=on_gpu)


def kernel_rows(entries: Iterable[Any], steps: int, *, on_gpu: bool) -> list[dict[str, Any]]:
    """The averages of a profiler over `steps` steps as rows for one step, longest first."""
    rows = []
    for entry in entries:
        # An annotation such as "Optimizer.step" spans kernels that have rows of their own.
        if on_gpu and (entry.device_type != DeviceType.CUDA or getattr(entry, "is_user_annotation", False)):
            continue
        time_us = entry.self_device_time_total if on_gpu else entry.self_cpu_time_total
        if not on_gpu and not is_operator(entry.key, time_us):
            continue
        if time_us > 0:
            rows.append(kernel_row(entry.key, entry.count / steps, time_us / steps, on_gpu=on_gpu))
    return longest_first(rows)


def is_operator(name: str, time_us: float) -> bool:
    """Whether an entry of a CPU's profile is a row: not the profiler's own mark of a step, nor an empty wrapper."""
    return not name.startswith("ProfilerStep") and (time_us >= 1.0 or kind_of(name, on_gpu=False) != "other")


def kernel_row(name: str, calls: float, time_us: float, *, on_gpu: bool) -> dict[str, Any]:
    """One row, its name shortened after its kind was told from the whole of it."""
    return {
        "name": short_name(name),
        "kind": kind_of(name, on_gpu=on_gpu),
        "calls": round(calls, 2),
        "time_us": round(time_us, 3),
    }


def in_format(rows: Iterable[dict[str, Any]], recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of a recipe's step, with inductor's own matmuls as ordinary ones where the recipe multiplies in float32.

    Their names are the same for every number format, and float32 (not TF32) has no Tensor Cores.
    """
    if compute_dtype(recipe) != "float32":
        return list(rows)
    ordinary = {"kind": "matmul, ordinary"}
    return [row | ordinary if re.search(INDUCTOR_MATMUL, row["name"]) else row for row in rows]


def longest_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -row["time_us"])


def short_name(kernel: str, limit: int = 160) -> str:
    """A kernel's name without the return type and template noise that make it unreadable, cut to `limit`."""
    name = re.sub(r"^(void|std::enable_if<.*?>::type) ", "", kernel).replace("at::native::", "")
    return name if len(name) <= limit else name[: limit - 1] + "…"
