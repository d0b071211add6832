# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fused AdamW
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/03_fused_adamw.ipynb)
#
# When the gradients are there, AdamW has to touch every weight once more. It can do so in three ways: one weight
# tensor after the other, one arithmetic operation after the other for all tensors, or everything at once. The formulas
# are the same in all three. What differs is how often the numbers travel between memory and chip, and how many kernels
# are launched.
#
# **Guess first:** the model has 161 weight tensors. How many kernels does each of the three ways launch for one
# update? And which of them does PyTorch take when you say nothing?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field. `"default"` leaves the choice to PyTorch, and on CUDA that is the second way, called *foreach*.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("03_fused_adamw", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# Per weight there are four numbers: the weight `w`, its gradient `g`, and the moments `m` and `v`. Written as PyTorch
# operations, an update goes through memory like this, counting each tensor that is read or written as one pass:
#
# ```text
#                                      read  written
# weight decay    w *= 1 - lr * decay     1        1
# first moment    m.lerp_(g, 1 - b1)      2        1
# second moment   v *= b2                 1        1
#                 v += (1 - b2) * g * g   3        1     g is named twice
# denominator     d = sqrt(v)             1        1
#                 d /= correction         1        1
#                 d += eps                1        1
# update          w -= rate * m / d       3        1
# ```
#
# These are 21 passes. One kernel that does everything for a weight while it is on the chip needs 7: read `w`, `g`, `m`
# and `v`, write `w`, `m` and `v`. One pass over 163,009,536 float32 weights is 0.61 GiB. At the bandwidth in NVIDIA's
# data sheets the 14 passes saved take 5.9 ms on an A100 40 GB (1,555 GB/s) and 1.9 ms on an H200 (4.8 TB/s).
#
# This is the same for 8 sequences as for 800: the optimizer does not see how many tokens made a gradient. Its share is
# large when the rest of the step is short.
#
# Launches are the second reason. The host needs some microseconds for each one. As long as the card is still busy with
# the backward pass, the host is ahead and its time is hidden; a long row of tiny kernels can use that lead up.
#
# The picture shows the same count: each box is one tensor on its way between memory and chip.

# %% mystnb={"image": {"alt": "Eight operations of AdamW, each with the tensors that it reads and writes, above one fused operation that reads four and writes three"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import adamw_passes

display(SVG(adamw_passes()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# Everything is an argument of `torch.optim.AdamW`.

# %%
from speedlab.training import optimizer

chapter.show_code((optimizer, "IMPLEMENTATIONS"), optimizer.build_optimizer)

# %% [markdown]
# ## Measured
#
# Two rows, not three: before is what PyTorch does by itself. Starting from the loop would flatter the change.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# Look at the row *optimizer*: the calls and the milliseconds of a whole update.

# %%
chapter.show_kernels()

# %% [markdown]
# The loop is not part of the ladder, so the next cell counts all three. It makes the weights of the model, gives them
# gradients of zero and profiles one update; it counts and does not time. By the table above the loop should come to 8
# operations x 161 tensors = 1,288 launches. A single launch can carry the addresses of many tensors, but not of any
# number of them, so neither foreach nor fused has to be one launch. Fused also keeps its step counters on the card and
# has to count them up there: the few launches beyond those of the fused kernel itself.
#
# Without a GPU the numbers are operators of a toy model, and foreach walks through the tensors one by one inside.

# %%
import torch

from speedlab.device import capabilities
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.kernels import kernel_table
from speedlab.model import GPT
from speedlab.profile import get_profile

if chapter.measures:
    machine = capabilities()
    device = torch.device(machine.device_type)
    recipe = get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes).recipe(NINE_STEPS, "fused_adamw")
    with device:
        weights = list(GPT(recipe).parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    for name in ("for_loop", "foreach", "fused"):
        adamw = optimizer.build_optimizer(recipe.but(optimizer=name), weights)
        adamw.step()  # the first update makes the moments
        rows = [row for row in kernel_table(adamw.step, device) if row["kind"] in ("optimizer", "element-wise")]
        what = "launches" if device.type == "cuda" else "operators"
        print(f"{name:8} {sum(row['calls'] for row in rows):6,.0f} {what} for {len(weights)} tensors")

# %% [markdown]
# ## Same training?
#
# A fused kernel keeps in registers what the separate operations store and load again, and may join a product and a sum
# into one rounding. The formulas are the same, the last bits need not be. Hence a tolerance, a small one.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# The fused form exists for every CUDA card and for CPUs. The time of the passes follows the bandwidth: by their data
# sheets a T4 (320 GB/s) has a fifteenth of an H200's.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Three sentences that go around, and where to look:
#
# * *"AdamW loops over the parameters by default."* On CUDA the row before the change is the default; compare its
#   optimizer calls with the count of the loop.
# * *"Fused is one kernel."* It is one kind of kernel. The count says how often it was launched.
# * *"Fused gains more on larger models."* Optimizer and matmuls both grow with the number of weights, so their ratio
#   stays. What changes the ratio is the number of tokens between two updates.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * Paper is enough: the matmuls of a step take about `6 x weights x tokens` FLOPs, a fused update moves `7 x 4 x
#   weights` bytes. For the TF32 rate and the bandwidth of your card, at how many tokens per update do both take the
#   same time? Why does the number of weights drop out?
# * Count the passes of SGD with momentum in the same way. What would fusing gain there? (No GPU needed.)
# * With a GPU: run the counting cell with `recipe.but(optimizer=name, num_layers=24)`. Which of the three counts
#   doubles?

# %%
chapter.finish()
