"""Whether Triton's kernels can run on a tensor. It imports no Triton; modules named `*_kernel` do, when called."""

import functools
import importlib.util

from torch import Tensor


def runs_triton(tensor: Tensor) -> bool:
    """True for a tensor on a CUDA device of a machine that has Triton: the fused form runs, else the plain one."""
    return tensor.is_cuda and _triton_is_there()


@functools.cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None
