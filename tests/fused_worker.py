"""Runs every Triton kernel of `speedlab.fused` against float64 formulas and prints the errors as JSON.

In a process of its own, because Triton decides when it is imported whether it interprets kernels (TRITON_INTERPRET=1,
on tensors of the CPU) or compiles them for a GPU. Usage: python fused_worker.py cpu|cuda
"""

from __future__ import annotations

import json
import sys

import torch

from speedlab.fused import adamw_kernel, cross_entropy_kernel, gelu_kernel, qkv_kernel, residual_norm_kernel
from speedlab.fused.adamw import OnePassAdamW
from speedlab.fused.cross_entropy_kernel import Form

device = torch.device(sys.argv[1])
generator = torch.Generator().manual_seed(7)
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random(*shape, scale=1.0, shift=0.0):
    return shift + scale * torch.randn(*shape, generator=generator)


def error(found, expected):
    """The largest difference, as a share of the largest value."""
    expected = expected.double().cpu()
    return ((found.double().cpu() - expected).abs().max() / expected.abs().max()).item()


def gelu(z):
    return z * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3))


def cross_entropy(dtype, columns, form):
    logits = random(5, columns, scale=4.0, shift=3.0).to(dtype)
    targets = torch.tensor([0, columns - 1, 17, 3, 17])
    leaf = logits.double().requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf, targets, reduction="none")
    (losses.mean()).backward()
    given = logits.clone().to(device)
    found = cross_entropy_kernel.losses_and_gradient(given, targets.to(device), 1 / 5, form)
    scaled = given.clone()
    for factor in (1.0, 0.5):
        cross_entropy_kernel.scale_in_place(scaled, torch.tensor(factor, device=device))
    wrong = cross_entropy_kernel.losses_and_gradient(
        logits.to(device), torch.full((5,), columns, device=device), 1.0, form
    )
    return {
        "losses": error(found, losses.detach()), "gradient": error(given, leaf.grad),
        "scaled": error(scaled, leaf.grad / 2), "not_refused": float(not wrong.isnan().all()),
    }  # fmt: skip


def bias_gelu(dtype, rows, columns):
    x, bias, dh = random(rows, columns, scale=3.0).to(dtype), random(columns).to(dtype), random(rows, columns).to(dtype)
    leaf, leaf_bias = x.double().requires_grad_(), bias.double().requires_grad_()
    h = gelu(leaf + leaf_bias)
    h.backward(dh.double())
    found = gelu_kernel.forward(x.to(device), bias.to(device))
    dx, dbias = gelu_kernel.backward(dh.to(device), x.to(device), bias.to(device))
    return {"h": error(found, h.detach()), "dx": error(dx, leaf.grad), "dbias": error(dbias, leaf_bias.grad)}


def residual_norm(dtype, rows, width, has_dz=True):
    x, delta, dz, dy = (random(rows, width).to(dtype) for _ in range(4))
    bias, weight, shift = random(width).to(dtype), random(width, shift=1.0).to(dtype), random(width).to(dtype)
    on_device = [value.to(device) for value in (x, delta, bias, weight, shift)]
    z, y, mean, scale = residual_norm_kernel.forward(*on_device, 1e-5)
    dx, sums = residual_norm_kernel.backward(
        dz.to(device) if has_dz else None, dy.to(device), z, weight.to(device), mean, scale
    )
    exact = x.double() + delta.double() + bias.double()
    # The gradient is the one at the stored sum, which is rounded.
    leaves = [value.double().cpu().requires_grad_() for value in (z, weight, shift)]
    normed = torch.nn.functional.layer_norm(leaves[0], (width,), leaves[1], leaves[2], 1e-5)
    normed.backward(dy.double())
    expected = leaves[0].grad + (dz.double() if has_dz else 0.0)
    return {
        "z": error(z, exact), "y": error(y, normed.detach()), "dx": error(dx, expected),
        "dweight": error(sums[0], leaves[1].grad), "dshift": error(sums[1], leaves[2].grad),
        "dbias": error(sums[2], expected.sum(dim=0)),
    }  # fmt: skip


def join(dtype, rows, width):
    parts = [random(rows, width).to(dtype) for _ in range(3)]
    joined, sums = qkv_kernel.join(*(part.to(device) for part in parts))
    expected = torch.cat(parts, dim=-1)
    return {"joined": error(joined, expected), "sums": error(sums, expected.double().sum(dim=0))}


def adamw(dtype, masters):
    shapes = [(50, 70), (3,), (2049,)]
    values = [random(*shape) for shape in shapes]
    weights = [torch.nn.Parameter(value.to(device, dtype)) for value in values]
    optimizer = OnePassAdamW(
        weights, [value.to(device) for value in values] if masters else None, lr=1e-2, weight_decay=0.1
    )
    leaves = [torch.nn.Parameter(value.double()) for value in values]
    reference = torch.optim.AdamW(leaves, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8)
    for _ in range(3):
        for weight, leaf in zip(weights, leaves, strict=True):
            gradient = random(*leaf.shape).to(dtype)
            weight.grad, leaf.grad = gradient.to(device), gradient.double()
        optimizer.steps += 1
        group = optimizer.param_groups[0]
        corrections = (1 - 0.9**optimizer.steps, (1 - 0.999**optimizer.steps) ** 0.5)
        optimizer._launch(
            [weight.grad for weight in weights], (group["lr"], group["weight_decay"], 0.9, 0.999, 1e-8, *corrections)
        )
        reference.step()
    moved = min(error(leaf.detach(), value) for leaf, value in zip(leaves, values, strict=True))
    views = optimizer._views(optimizer.masters)
    return {
        "masters": max(error(view, leaf.detach()) for view, leaf in zip(views, leaves, strict=True)),
        "weights": max(error(weight.detach(), leaf.detach()) for weight, leaf in zip(weights, leaves, strict=True)),
        "did_not_move": float(moved < 1e-3),
    }


assert adamw_kernel is not None
results = {}
for name, dtype in FORMATS.items():
    results[f"cross_entropy {name}"] = cross_entropy(dtype, 200, Form(False, 64, 4, 2))
    results[f"cross_entropy held {name}"] = cross_entropy(dtype, 200, Form(True, 0, 4, 2))
    results[f"cross_entropy one block {name}"] = cross_entropy(dtype, 130, None)
    results[f"bias_gelu {name}"] = bias_gelu(dtype, 131, 96)
    results[f"residual_norm {name}"] = residual_norm(dtype, 13, 96)
    results[f"last residual_norm {name}"] = residual_norm(dtype, 13, 96, has_dz=False)
    results[f"join {name}"] = join(dtype, 131, 96)
    results[f"adamw {name}"] = adamw(dtype, masters=True)
results["adamw float32 without masters"] = adamw(torch.float32, masters=False)
print(json.dumps(results))
