# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Aligned shapes and a larger batch
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/09_aligned_shapes.ipynb)
#
# GPT-2's tokenizer knows 50,257 ids. The number is odd, and one step of training multiplies by a matrix of that many
# columns three times. Would it help to compute 47 columns that nobody needs?
#
# **Guess first:** more columns are more arithmetic. How much more, in per cent of the head? And with four times the
# sequences in a step, should the step take four times as long?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Two fields, one after the other. **9a** pads the vocabulary to a multiple of 64: 50,257 becomes 50,304. **9b** takes
# 32 sequences in a batch instead of 8, and that changes the training: an update sees four times the tokens.

# %%
from dataclasses import replace

from IPython.display import SVG, Markdown, display

from speedlab.notebook import Chapter
from speedlab.publishing.chapter_words import longest_kernels
from speedlab.publishing.diagrams import padded_tiles

chapter = Chapter("09_aligned_shapes", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# **9a.** The logits are a matrix with one row per token. In bfloat16 an exact row has `50,257 x 2 = 100,514` bytes,
# which leaves a remainder of 2 when divided by 16. So nearly every row starts at an address that does not suit the
# widest loads. Which matmul kernels may run depends on that: those that move 16 bytes at once need rows that start on
# 16-byte borders, and so does the copy engine of H100 and H200, whose strides must be multiples of 16 bytes (CUDA
# driver API, `cuTensorMapEncodeTiled`). A padded row has `50,304 x 2 = 100,608` bytes, a multiple of 128. For 16-byte
# borders a multiple of 8 would do, 50,264; 64 is the common choice, because rows then begin where lines of the cache do
# and the widths of tiles, 64 or 128 columns, are filled.
#
# All three products of the head touch that matrix: the forward pass writes it, and both gradients read its gradient.
# The padding adds `47 / 50,257`, less than a thousandth, to their arithmetic. The token table grows too, but a table
# is looked up, not multiplied; its 768 numbers a row were aligned before.
#
# The kernel computes the matrix in tiles, and the last tile across is computed whole even where the matrix has ended.
# So the 47 columns were computed before as well, and thrown away. The picture shows both effects.
#
# **9b.** The optimizer reads and writes all weights once per update, however many tokens the update saw, and launching
# a kernel costs the same for a large one as for a small one. Four times the tokens share both. Each matmul has four
# times the rows, so the last, half-empty round of tiles weighs less. In exchange, activations grow fourfold: the
# logits alone from 786 MiB to 3.1 GiB.

# %% mystnb={"image": {"alt": "Row starts of the exact matrix wander between 16-byte borders, those of the padded one never do; the last tiles show the columns computed in vain"}}
display(SVG(padded_tiles()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# Rows of table and head come from one property. New rows start at zero, and the loss that variants are compared by
# leaves the padded ids out. The batch is a number of the recipe and needs no code at all.

# %%
from speedlab.model import load_weights
from speedlab.recipe import Recipe
from speedlab.training.step import loss_over_true_ids

chapter.show_code(Recipe.padded_vocab_size.fget, load_weights, loss_over_true_ids)

# %% [markdown]
# ## Measured
#
# Compare tokens per second here, not milliseconds: a step of the last row does four times the work.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# On a fast card look at the sums too. If the kernels of a step take clearly less time than the step, the card waited
# for the host to launch them, which can happen in a compiled step of 8 sequences. Then 9a shortens kernels that nobody
# was waiting for, and part of what 9b gains comes from the host, not from fuller kernels.

# %%
chapter.show_kernels()

# %% [markdown]
# The names of the matmul kernels say more. The head runs once in a step and the blocks twelve times, so its products
# have few calls and long times. Are they the same kernels before and after 9a? If `torch.compile` had already padded
# the head by itself (chapter 8), a name may stay, and an extra kernel that did the padding may go. Then the time by
# kind says the same: matrix multiplications stay, copies and fused kernels shrink.

# %%
everything = [record for records in (*chapter.recorded.values(), chapter.live) for record in records]
for record in (record for record in everything if record.kernels):
    matmuls = [kernel for kernel in record.kernels if kernel["kind"].startswith("matmul")]
    display(Markdown(longest_kernels(replace(record, kernels=matmuls))))

# %% [markdown]
# ## Same training?
#
# **9a** must be, and one trap makes it look different. An untrained model finds all ids about equally likely, so its
# loss is near the logarithm of their number. With 47 more ids in the softmax it starts higher by `ln(50,304/50,257)`,
# about 0.00093 nats. We compare over the true ids, where the shift is gone. In training the padded ids take
# part: they are never the target, so their probability is pushed down, and the loss needs no mask. Sampling does, or
# an id without a text might be drawn. Zeros are not essential as a start; small numbers would be pushed down alike.
#
# **9b** is not the same training. Four times the tokens per update are a quarter of the updates for the same text.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# Nothing here needs a special unit. How much 9a gives depends on which kernels the library has for a card, and 9b
# needs memory; a profile for smaller cards divides both batches.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# * *Padding aligns memory to 128 bytes and bandwidth reaches its peak*, or *tiles are 8x8, 16x16, 32x32.* Neither
#   explains a matmul that is limited by arithmetic. Another kernel may run: compare the names above.
# * *Alignment gives 10 to 30 %.* Published are 13.7 % (LLMs-from-scratch), 4 % (the account of six steps, A100) and
#   about 5 % (the same, T4). Head time over step time bounds what is possible: what share has it in your table?
# * *A batch must be a power of two.* The matmuls see batch x 1,024 rows, as aligned for 31 sequences as for 32.
# * *These steps cost nothing in correctness.* For 9a the contract above decides. 9b is another optimization by design.
# * *A longer context or a larger batch is the same.* Not by counting: the attention part of the FLOPs for a token
#   grows with the context and does not know the batch. Only a grid of both at equal memory can say what it costs.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: which is the smallest vocabulary above 50,257 whose bfloat16 rows are multiples of 16 bytes? How many
#   columns does it save over 50,304?
# * No GPU: `speedlab.work.nominal_flops_per_token` counts the arithmetic of a recipe. Double `context_length`, then
#   double `micro_batch` instead. Which changes the count for a token?
# * With a GPU: measure `micro_batch` 31 and 33 beside 32. Do tokens per second see the power of two?

# %%
chapter.finish()
