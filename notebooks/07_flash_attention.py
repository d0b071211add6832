# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # FlashAttention
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/07_flash_attention.ipynb)
#
# Attention compares every token with every earlier one. Written out, it stores all those comparisons: a square of
# context x context scores for each head of each sequence. Can the same result be computed without the square?
#
# **Guess first:** the fused kernel does the arithmetic in another order and recomputes part of it in the backward
# pass. Where should time come back from, then: arithmetic, memory traffic or launches? Is the result an approximation?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Two fields, one after the other, so that each has its own row. **7a** replaces the written-out attention by PyTorch's
# `scaled_dot_product_attention`. **7b** computes query, key and value in one matmul instead of three. The published
# ladder reports a single figure for both.

# %%
from IPython.display import SVG

from speedlab.notebook import Chapter
from speedlab.publishing.diagrams import causal_block_skipping, flash_attention_tiling, hbm_traffic

chapter = Chapter("07_flash_attention", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# **7a.** For 8 sequences, 12 heads, 1,024 tokens and 2 bytes a value, the square takes `8 x 12 x 1,024 x 1,024 x 2
# bytes = 192 MiB` in each layer. The queries take 12 MiB. Plain attention writes scores, reads them for the softmax,
# writes probabilities, reads them again; mask, scaling and dropout add passes of their own. It also has to keep things
# for the backward pass: the probabilities before and after dropout, and the dropout mask at one byte. That is `192 +
# 192 + 96 = 480 MiB` a layer, or 5.6 GiB in twelve. The picture shows the traffic of the forward pass, by formula.

# %% mystnb={"image": {"alt": "Two bars to one scale: plain attention moves the score matrix four times, tiled attention moves only queries, keys, values and output"}}
chapter.show_prediction()
SVG(hbm_traffic())

# %% [markdown]
# A softmax seems to need a whole row at once: first its maximum, then the sum of its exponentials. It does not. Take
# the keys tile by tile and keep three things per query: the largest score so far, the sum so far, the output so far.
# When a later tile brings a larger score, what has been summed is multiplied by `e^(old maximum - new maximum)`, and
# all is as if that maximum had been known from the start. One tile fits into the memory on the chip; the square never
# exists. The backward pass computes the scores again from queries and keys, with the help of one stored number per
# row, the logarithm of its sum. For the tiles that it visits the fused form does *more* arithmetic, seven products
# forward and backward where plain attention does six. What it saves there is waiting for memory.

# %% mystnb={"image": {"alt": "Three tiles of two keys pass one query row; after each, the running maximum, sum and output are updated, and the end result equals the ordinary softmax"}, "figure": {"caption": "The running softmax on one query row: exact, although no step sees all scores.", "name": "fig-flash-attention-tiling"}}
SVG(flash_attention_tiling())

# %% [markdown]
# <!-- touch: attention-stepper -->
#
# **7b.** The arithmetic is the same, `3 x 768` output columns either way, but the input is read once, and the card is
# filled in fewer uneven rounds. With output tiles of 128 x 256, say, a narrow matmul has `64 x 3 = 192` tiles: two
# rounds for the 132 multiprocessors of an H200, the second not half full. The wide one has 576 tiles, five rounds
# instead of six. Backward saves two additions of input gradients; in exchange it joins the gradients of query, key and
# value.
#
# ## The change
#
# `is_causal=True` is more than a mask: it tells the kernel which tiles lie in the future as a whole. They are never
# computed. With `n` tiles a side, `(n + 1) / 2n` of the work remains, which approaches one half for long contexts.
# The picture below the code shows them.

# %% mystnb={"image": {"alt": "A square of tiles: those below the diagonal are computed whole, those on it are masked inside, those above it are skipped"}}
from speedlab.model import attention

chapter.show_code(
    attention.PlainAttention, attention.FusedAttention, attention.MergedProjection, (attention, "PROJECTIONS")
)
SVG(causal_block_skipping())

# %% [markdown]
# ## Measured
#
# Three rows: where chapter 6 ended, then 7a, then 7b. Look at memory as well as at speed, and compare the drop with
# the 5.6 GiB counted above, which are tensors. The column is what the allocator reserved: blocks, some of them not
# filled. In the published ladder (LLMs-from-scratch, one A100) it was 11.56 to 5.90 GiB.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# `scaled_dot_product_attention` is a front door. Behind it stand FlashAttention-2, cuDNN's kernel of the same kind, a
# memory-efficient kernel and a written-out form; PyTorch chooses by card, number format and shape, and its order of
# preference changes between versions. Torch 2.11 on an H200 prefers cuDNN, for example. Asking for "flash" is
# therefore no evidence of it: the sentence below is made from the names of kernels that ran. After 7b, look also under
# *copy* for the joining of the three gradients.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# FlashAttention is exact: on paper both forms are the same function. They add in another order, so they round
# differently. FlashAttention and cuDNN kernels take 16-bit inputs, and bfloat16 near 1 has steps of 1/128: a claim
# that outputs agree to one millionth cannot hold there, and `allow_tf32` does not reach such kernels. That the
# difference *regularises* is claimed without evidence; losses that agree leave little room for it.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# The call runs everywhere; the kernel behind it differs. PyTorch's FlashAttention and cuDNN kernels need compute
# capability 8.0; what is left for a T4 (7.5) is the memory-efficient kernel, which tiles too. So "unavailable on T4"
# and "works on T4" are both loose talk. The kind of kernel in a T4's own table decides, and its memory column says
# whether the square is gone.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# * *An on-the-fly mask makes 131,072 tokens possible.* Chapter 1 removed one square; the scores were another. Only a
#   kernel that knows `is_causal` needs neither.
# * *`is_causal` halves the work.* The formula above says how near it comes, for attention alone. The rest of the step
#   does not change, so compare the time of the attention kernels, not the step.
# * *FlashAttention is the largest memory saver, 26 to 6 GB.* Those are the two ends of a whole ladder. Put the drop of
#   this chapter beside that of bfloat16 in chapter 5 before you believe it.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: run `PlainAttention` and `FusedAttention` of `Recipe(dropout=0.0)` on random q, k, v of shape (1, 2, 64,
#   32), in float64, float32 and bfloat16. Which of the two is nearer to float64, and by how much?
# * No GPU: double the context to 2,048. Which numbers of the first diagram double, which grow fourfold?
#   `hbm_traffic(context=2048)` draws the answer.
# * With a GPU: `NINE_STEPS.recipe_at("merged_qkv").but(attention="sdpa_flash")` insists on one kernel. Time it, and
#   `"sdpa_cudnn"` and `"sdpa_efficient"`, with `speedlab.measuring.variant.measure_variant`. Was the choice the best?

# %%
chapter.finish()
