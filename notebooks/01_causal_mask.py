# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Causal mask on the fly
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/01_causal_mask.ipynb)
#
# A language model must not see the tokens that it is asked to predict. The plain form of attention enforces this with
# a triangular mask of context x context entries. The usual teaching code makes that mask once and stores it in every
# layer. What happens if it is made anew in each forward pass instead?
#
# **Guess first:** does the step get faster, slower, or neither? And how much memory is at stake for a context of 1,024
# tokens, and for one of 131,072?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field of the recipe. Everything else stays as it was in the baseline: float32, hand-written layers, attention
# written out.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("01_causal_mask", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# It should not, at this size. The stored mask is a buffer of 1,024 x 1,024 float32 numbers, 4 MiB in each of the twelve
# layers, which is little beside the scores themselves: for 8 sequences and 12 heads those are 384 MiB in every layer.
# Both variants end with a mask of booleans in each forward pass. One gets it by converting the stored numbers, one
# kernel in each layer. The other fills a square with ones and cuts the triangle out of it, two small kernels. None of
# these touches more than a few MiB, so the step should not notice.
#
# What does grow is the square: at a context of 131,072 tokens one stored mask would take 131,072 x 131,072 x 4 bytes,
# which is 64 GiB, in every layer. Making it on the fly leaves one such square at a time, of booleans. That does not
# save such a context: while `ones` becomes a triangle two squares exist, and the float32 scores of a single head take
# 64 GiB again. Only a kernel that never builds the square at all helps there; chapter 7 has it.

# %%
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# Both forms stand beside each other in the package, and a table picks one by the value of the recipe field.

# %%
from speedlab.model import attention

chapter.show_code(attention.StoredMask, attention.MaskOnTheFly, (attention, "MASKS"))

# %% [markdown]
# ## Measured
#
# Whole optimizer steps, data included; the median of the timed steps with its quartiles. The column of memory is what
# the allocator *reserved*, in blocks that hold more than one tensor: it can move by more, or by less, than the 48 MiB.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# The profiler names the kernels of one step. Look for the small ones: the copies that turn the stored numbers into
# booleans on one side, the triangle on the other.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# The arithmetic on the scores is the same in both variants, so the losses must be equal bit for bit, not only close.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# Nothing here depends on the hardware.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Three sentences that go around, and where to look:
#
# * *"Making the mask on the fly is faster."* The table under *Measured* has both times and says whether they differ.
# * *"It makes long contexts possible."* By the count above it removes one square of several. The scores remain.
# * *"It saves memory."* It does, by one square in each layer. Compare this with the column of the peak. The page of
#   results says what holds the rest of it.
#
# A buffer that looks wasteful is not always what matters. Measure before you change, and look at what is large.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * How many bytes does the stored mask take in all layers together, as booleans instead of float32? Work it out, then
#   change `StoredMask` and look at the peak.
# * At which context length does one layer's stored mask outgrow the weights of that layer? (A layer has 12 x width x width
#   weights in its matmuls.) No GPU is needed for this one.

# %%
chapter.finish()
