# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # bfloat16
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/05_bfloat16.ipynb)
#
# Storing a number in 16 bits instead of 32 halves every transfer, and it opens the fastest mode of the Tensor Cores.
# This chapter casts everything: weights, gradients, both moments of AdamW, activations. That is the shortest way,
# `model.to(torch.bfloat16)`. It is often called mixed precision. It is not: nothing is mixed.
#
# **Guess first:** a weight is 1.0 and an update wants to add 0.001. What is the new weight in bfloat16? And after
# 1,000 such updates?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field. It makes another one meaningless: `matmul_precision` stays at `"high"`, but it speaks about float32
# matmuls, and there are none left.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("05_bfloat16", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# bfloat16 is float32 cut in half: the same 8 exponent bits, 7 fraction bits instead of 23 (chapter 2 has the picture).
# Two effects come together.
#
# * **Rate.** By NVIDIA's data sheets the Tensor Cores do bfloat16 at twice the rate of TF32: 312 against 156 TFLOP/s
#   on an A100, 989.5 against 494.7 on an H200 SXM.
# * **Bytes.** Every tensor has half as many, so each operation that waits for memory has half as long to wait. That
#   includes all the rest which TF32 left alone.
#
# Each is a factor of two at most. The two do not multiply: an operation waits either for the multiplier or for the
# memory, and gains from one of them. So the whole step should gain a factor of two at most as well. One that gains
# more has another reason, such as a better kernel.
#
# For the memory the first thought is that the weights are half as large. That is true and explains little:
#
# ```text
# weights, gradients, two moments: 4 x 163,009,536 x 2 bytes saved = 1.2 GiB
# ```
#
# The *published* figures for this step on an A100 (LLMs-from-scratch, README of the speed chapter) are 26.24 GiB
# before and 13.79 GiB after, about ten times that difference. What else is stored? The activations that wait for the
# backward pass, above all the attention weights: 8 x 12 x 1,024 x 1,024 numbers in each of twelve layers, before and
# after dropout.

# %%
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# A precision has two parts that are easily confused: what the weights are *stored* in, and what the matmuls are
# *computed* in. `"bfloat16"` sets the first, and the second follows. `"bfloat16_autocast"` is mixed precision:
# weights, gradients and moments remain float32, and `torch.autocast` casts what goes into a matmul.

# %%
from speedlab.training import precision

chapter.show_code(precision.Precision, (precision, "PRECISIONS"))

# %% [markdown]
# ## Measured

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# The matmuls ran on Tensor Cores before and they do now; their kernels have other names. Compare the milliseconds of
# the kinds. A kind that stays clearly above half of its time is limited neither by bandwidth nor by the matmul rate.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# Forward and backward are rounded more coarsely, and the tolerance allows for that. A contract of a few steps says
# that the gradients are about right. It cannot see what happens to many small updates:

# %%
chapter.show_contract()

# %% [markdown]
# bfloat16 stores 7 fraction bits. Between 1 and 2 its numbers are therefore 1/128 apart, and the sum of weight and
# update is rounded to the nearest of them. An update of less than half that distance, 1/256, is rounded away. For a
# weight of 1 this limit is 1/256 of the weight, for a weight just below 2 it is 1/512 of it; in every other power of
# two it is the same. (Downwards from 1 itself the neighbours are half as far, so there the limit is 1/512 too.) So an
# update below 1/512 of its weight is always lost, and one above 1/256 never is. Lost means lost: the next update starts
# from the old weight again.
#
# An AdamW update is about as large as the learning rate, here 0.0005. The next cell gives one weight the same gradient
# 100 times, in both formats:

# %%
import torch

from speedlab.recipe import Recipe
from speedlab.training.optimizer import build_optimizer

for start in (1.0, 0.1, 0.02):
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.tensor([start], dtype=dtype))
        adamw = build_optimizer(Recipe(optimizer="fused", weight_decay=0.0), [weight])
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            adamw.step()
        print(f"{dtype!s:14} {start:4} -> {weight.item():.6f}")

# %% [markdown]
# The gains of LayerNorm start at 1.0; matrices are drawn with a standard deviation of 0.02. The moments suffer as
# well. The second one is multiplied by 0.999 at each step. That changes it by one part in a thousand, which is below
# 1/512, so it never shrinks.
#
# <!-- touch: number-formats -->
#
# ## On other cards
#
# Units for bfloat16 exist from compute capability 8.0. On a T4 `torch.cuda.is_bf16_supported()` still says `True`,
# because by default it counts emulation; with `including_emulation=False` it tells what the hardware has. The package
# asks for the capability and runs float16 autocast there. float16 has 10 fraction bits, but only 5 for the exponent.
# Gradients smaller than about 3e-8 become zero, so a `GradScaler` multiplies the loss before the backward pass and
# divides the gradients after it. For that the weights and gradients have to be float32: on a T4 this change *is* mixed
# precision, and the memory of weights and moments does not shrink.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Sentences that go around, and where to look:
#
# * *"`model.to(torch.bfloat16)` is mixed precision."* The table of precisions shows the difference.
# * *"bfloat16 needs no care."* The losses under *Same training?* say how far a few steps move. The cell after them
#   says what they cannot show. Ladder six-steps keeps float32 weights.
# * *"It halves the memory because the parameters halve."* Take the two peaks under *Measured* (on a GPU) and subtract
#   the 1.2 GiB from their difference.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU needed: start the weight of the cell above at 1.0 and find the smallest learning rate that moves it,
#   downwards and upwards. Why are the two not the same?
# * No GPU needed: keep a float32 copy of the weight, update the copy, and store it rounded to bfloat16 after each
#   update. Does the weight move now? How many bytes per weight does this cost?
# * Work out what the attention weights of all layers take in float32 and in bfloat16, and compare the difference with
#   the published one.

# %%
chapter.finish()
