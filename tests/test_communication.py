"""What of a profile is communication, and how many bytes are sent; the link itself is measured in test_distributed."""

from types import SimpleNamespace

import pytest
from model_helper import TINY
from torch.autograd import DeviceType

from speedlab.measuring.communication import device_spans, gradient_bytes
from speedlab.measuring.timeline import Span


def event(name, start, end, *, device=DeviceType.CUDA, annotation=False):
    return SimpleNamespace(
        name=name, device_type=device, is_user_annotation=annotation, time_range=SimpleNamespace(start=start, end=end)
    )


def test_the_spans_are_the_kernels_on_the_card_with_their_kinds():
    events = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 10.0, 30.0),
        event("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", 5.0, 20.0),
        event("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >", 40.0, 44.0),
        event("nccl:all_reduce", 9.0, 31.0, annotation=True),
        event("Optimizer.step#AdamW.step", 39.0, 45.0, annotation=True),
        event("aten::mm", 1.0, 2.0, device=DeviceType.CPU),
        event("Memcpy HtoD (Pinned -> Device)", 50.0, 50.0),  # without a length it covers nothing
    ]
    assert device_spans(events) == [
        Span("communication", 10.0, 30.0), Span("matmul, Tensor Cores", 5.0, 20.0), Span("optimizer", 40.0, 44.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "bytes_each"),
    [
        ({}, 4), ({"precision": "bfloat16"}, 2), ({"precision": "bfloat16_master"}, 2),
        ({"precision": "bfloat16_autocast"}, 4), ({"gradient_exchange": "bfloat16"}, 2),
    ],
)  # fmt: skip
def test_gradients_are_sent_in_the_format_of_the_weights_unless_the_recipe_says_another(change, bytes_each):
    assert gradient_bytes(TINY.but(**change), 1_000) == 1_000 * bytes_each
