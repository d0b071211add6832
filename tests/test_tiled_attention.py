"""Tiled attention against attention written out in float64: outputs, gradients, and the states on the way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from speedlab.errors import BadInput
from speedlab.model import tiled_attention as module
from speedlab.model.tiled_attention import tiled_attention, visit_key_tiles

# (batch, query heads, key/value heads, queries, keys, width, width of a value, tile of queries, tile of keys, causal)
CASES = {
    "one tile": (2, 3, 3, 8, 8, 4, 4, 64, 64, True),
    "even tiles": (1, 2, 2, 16, 16, 8, 8, 4, 4, True),
    "odd sizes": (2, 2, 2, 13, 13, 5, 5, 4, 3, True),
    "wide key tiles": (1, 2, 2, 13, 13, 4, 4, 3, 7, True),
    "tiles of one": (1, 1, 1, 5, 5, 3, 3, 1, 1, True),
    "one token": (1, 2, 2, 1, 1, 4, 4, 4, 4, True),
    "not causal": (2, 2, 2, 11, 11, 4, 4, 4, 4, False),
    "other number of keys": (1, 2, 2, 5, 12, 4, 4, 2, 5, False),
    "grouped queries": (2, 6, 2, 9, 9, 4, 4, 4, 2, True),
    "one key head": (1, 4, 1, 9, 9, 4, 4, 2, 4, True),
    "narrow values": (1, 4, 2, 7, 7, 6, 3, 4, 2, True),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(case: tuple, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    batch, heads, groups, queries, keys, width, value_width, *_ = case
    shapes = ((heads, queries, width), (groups, keys, width), (groups, keys, value_width))
    return [random(batch, *shape, seed=seed, dtype=dtype).mul_(2).requires_grad_() for seed, shape in enumerate(shapes)]


def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """One batch, one head and one query at a time."""
    group = q.shape[1] // k.shape[1]
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                seen = t + 1 if causal else k.shape[2]
                scores = torch.stack([q[b, h, t].dot(k[b, h // group, s]) for s in range(seen)]) / math.sqrt(q.shape[3])
                rows.append(torch.softmax(scores, dim=0) @ v[b, h // group, :seen])
    return torch.stack(rows).view(*q.shape[:3], v.shape[3])


@every_case
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.05)], ids=str
)
def test_output_and_gradients_are_those_of_plain_attention(case: tuple, dtype: torch.dtype, tolerance: float) -> None:
    """Sums run in float32 for 16-bit inputs, so there the error is the rounding of what goes in and out."""
    *_, query_tile, key_tile, causal = case
    found, exact = inputs(case, dtype), [x.detach().double().requires_grad_() for x in inputs(case, dtype)]
    output = tiled_attention(*found, causal=causal, query_tile=query_tile, key_tile=key_tile)
    expected = plain(*exact, causal)
    weights = random(*expected.shape, seed=9)
    (output.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    for one, two in zip(found, exact, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=tolerance, atol=tolerance)


@every_case
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(case: tuple) -> None:
    *_, query_tile, key_tile, causal = case

    def call(*qkv: Tensor) -> Tensor:
        return tiled_attention(*qkv, causal=causal, query_tile=query_tile, key_tile=key_tile)

    small = tuple(x[:1, :, :7].detach().requires_grad_() for x in inputs(case))
    assert torch.autograd.gradcheck(call, small, fast_mode=True)


def test_large_scores_neither_overflow_nor_vanish() -> None:
    q, k, v = (x.detach() for x in inputs(CASES["even tiles"], torch.float32))
    output = tiled_attention(100 * q, 100 * k, v, query_tile=4, key_tile=4)
    assert output.isfinite().all()
    expected = plain(100 * q.double(), 100 * k.double(), v.double(), True)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("causal", "visited"), [(True, [1, 2, 3, 4]), (False, [4, 4, 4, 4])])
def test_tiles_in_the_future_are_never_computed(monkeypatch: pytest.MonkeyPatch, causal: bool, visited: list) -> None:
    q, k, v = inputs(CASES["even tiles"])
    seen: list[tuple[int, int]] = []
    real = module.masked_scores

    def counting(query: Tensor, key: Tensor, first_query: int, first_key: int, causal: bool) -> Tensor:
        seen.append((first_query, first_key))
        return real(query, key, first_query, first_key, causal)

    monkeypatch.setattr(module, "masked_scores", counting)
    output = tiled_attention(q, k, v, causal=causal, query_tile=4, key_tile=4)
    forward = [sum(first_query == 4 * row for first_query, _ in seen) for row in range(4)]
    seen.clear()
    output.sum().backward()
    backward = [sum(first_query == 4 * row for first_query, _ in seen) for row in range(4)]
    assert forward == backward == visited


def test_what_is_kept_for_the_backward_pass_grows_with_the_tokens_and_not_with_their_square() -> None:
    kept = {}
    for tokens in (32, 64):
        q, k, v = (random(1, 2, tokens, 4, seed=seed).requires_grad_() for seed in range(3))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            tiled_attention(q, k, v, query_tile=8, key_tile=8)
        kept[tokens] = sum(sizes)
    assert kept == {tokens: 2 * tokens * (4 * 4 + 1) for tokens in kept}


def test_each_state_is_the_exact_result_over_the_keys_so_far() -> None:
    q, k, v = (x.detach() for x in inputs(CASES["odd sizes"]))
    states = list(visit_key_tiles(q[..., 8:12, :], k, v, first_query=8, causal=True, key_tile=5))
    assert [state.first_key for state in states] == [0, 5, 10]
    for state in states:
        keys = state.first_key + state.scores.shape[-1]
        scores = q[..., 8:12, :] @ k[..., :keys, :].transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores.masked_fill_(torch.arange(keys) > torch.arange(8, 12)[:, None], -math.inf)
        torch.testing.assert_close(state.running_max, scores.amax(-1, keepdim=True))
        torch.testing.assert_close(state.running_max + state.running_sum.log(), scores.logsumexp(-1, keepdim=True))
        torch.testing.assert_close(state.output / state.running_sum, scores.softmax(-1) @ v[..., :keys, :])


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 3, 4, 2), (1, 2, 4, 2), (1, 2, 4, 2)), {}, "3 query heads cannot share 2"),
        (((1, 2, 4, 2), (1, 2, 5, 2), (1, 2, 5, 2)), {}, "as many keys as queries"),
        (((1, 2, 4, 2), (1, 2, 4, 3), (1, 2, 4, 3)), {}, "batch and width"),
        (((2, 4, 2), (2, 4, 2), (2, 4, 2)), {}, "four sizes"),
        (((1, 2, 0, 2), (1, 2, 0, 2), (1, 2, 0, 2)), {}, "none of them 0"),
        (((1, 2, 4, 2), (1, 2, 4, 2), (1, 2, 4, 2)), {"key_tile": 0}, "at least 1"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_in_one_line(shapes: tuple, options: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        tiled_attention(*(torch.zeros(shape) for shape in shapes), **options)
    assert "\n" not in str(error.value)
