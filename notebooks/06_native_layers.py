# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PyTorch's own LayerNorm and GELU
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/06_native_layers.ipynb)
#
# Textbooks write LayerNorm and GELU as a few lines of arithmetic, and so does our model up to here. PyTorch has both
# as single kernels. The number of additions and multiplications is nearly the same, so a comparison of FLOPs sees no
# difference. Is there one?
#
# **Guess first:** how many kernels does a written-out GELU launch, how many a written-out LayerNorm? How often is each
# of them called in one forward pass of a model with twelve blocks?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field that stands for both layers.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("06_native_layers", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# PyTorch runs line by line. Each operation loads its inputs from memory, does one small thing and stores the result,
# which the next operation loads again. For such operations the time is the number of bytes, so we count passes: one
# for each full-width tensor that is read or written. GELU, forward:
#
# ```text
#                                 read  written
# a = x ** 3                         1        1
# b = 0.044715 * a                   1        1
# c = x + b                          2        1
# d = sqrt(2 / pi) * c               1        1
# e = tanh(d)                        1        1
# f = 1 + e                          1        1
# g = 0.5 * x                        1        1
# y = g * f                          2        1
#                                   10        8     18 passes
# ```
#
# One kernel reads `x`, keeps all the rest in registers and writes `y`: 2 passes. LayerNorm is 10 passes against 2 in
# the same way of counting, because mean and variance are one number per token and cost next to nothing. The backward
# pass has one or two such operations for each forward one, and the prediction below counts them too.
#
# A norm stands before attention and before the feed-forward part of each block, and one more at the end: 25 in all. A
# block has one GELU, which makes 12, but these work on tensors four times as wide.
#
# There is a second gain. Autograd keeps what the backward pass will need, and for the written-out form these are the
# values in between: the cube needs `x`, tanh its result, the last product both factors. That makes four tensors for
# GELU; the single kernel keeps `x` and computes the rest again. LayerNorm keeps three against one. In bfloat16, for 8
# x 1,024 tokens:
#
# ```text
# GELU       3 tensors fewer x 12 x 8 x 1,024 x 3,072 x 2 bytes = 1.69 GiB
# LayerNorm  2 tensors fewer x 25 x 8 x 1,024 x   768 x 2 bytes = 0.59 GiB
# ```
#
# The picture counts forward and backward together, as the prediction below it does.

# %% mystnb={"image": {"alt": "Rows of boxes, one for each pass over memory: long rows for GELU and LayerNorm written out, short ones for their single kernels"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import fusion_passes

display(SVG(fusion_passes()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# Count the operations in the written-out forms before you read on.

# %%
from speedlab.model import layers

chapter.show_code(layers.HandwrittenLayerNorm, layers.HandwrittenGELU, layers.NativeGELU, (layers, "LAYERS"))

# %% [markdown]
# ## Measured
#
# The memory column is as much of this chapter as the speed.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# Element-wise operations and reductions should become fewer; the kind *normalization* appears.

# %%
chapter.show_kernels()

# %% [markdown]
# Those are the calls of a whole step. The next cell counts the forward pass of each layer alone. On a GPU it counts
# launches. On a CPU it counts operators, and one of them may contain others.

# %%
from collections import Counter

import torch

from speedlab.device import capabilities
from speedlab.measuring.kernels import kernel_table

device = torch.device(capabilities().device_type)
x_BTC = torch.randn(8, 128, 768, device=device)
for name, layer_set in layers.LAYERS.items():
    for module in (layer_set.layer_norm(768).to(device), layer_set.gelu()):
        module(x_BTC)  # load the kernels before they are counted
        counts = Counter()
        for row in kernel_table(lambda module=module: module(x_BTC), device):
            counts[row["kind"]] += row["calls"]
        found = ", ".join(f"{calls:g} {kind}" for kind, calls in counts.items() if kind not in ("other", "copy"))
        print(f"{name:12} {type(module).__name__:21} {found}")

# %% [markdown]
# ## Same training?
#
# The single kernels compute in float32 inside and round once, at the end. The written-out forms round to bfloat16
# after each operation. So the losses differ, and the later variant is the one that rounds less. The form of GELU has
# to stay the same: GPT-2 uses the tanh approximation, and `nn.GELU()` without an argument is the exact function.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# These kernels exist everywhere. How much they matter follows from a ratio: the faster a card's matmuls are for its
# memory bandwidth, the larger is the share of the passes that are saved here.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Two sentences that go around, and where to look:
#
# * *"LayerNorm and GELU are each called twice per block, 48 calls."* Twice per block is right for the norms, and the
#   last one comes on top. The *normalization* row shows the calls of a step with forward and backward together, and a
#   backward pass can take more than one kernel.
# * *"GELU goes from 5 launches to 1."* The count of the layer alone decides, on a GPU. For the form above, written by
#   somebody else with other brackets, it may be another number.
#
# FLOPs told nothing here. For operations that do little with each number, count bytes.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU needed: `torch.autograd.graph.saved_tensors_hooks` calls a function for every tensor that autograd keeps.
#   Collect the full-width ones of each layer, by `data_ptr()` because one tensor may be kept twice, and check the
#   four, three and one claimed above.
# * Write GELU with fewer passes, without any kernel of your own: `0.5 * x` and `1 + e` can be had more cheaply. How
#   low can you get, and what does in-place arithmetic do to the tensors that autograd needs?
# * The passes of LayerNorm are not listed above. Make the table. Which two of its eight operations are not counted,
#   and why?

# %%
chapter.finish()
