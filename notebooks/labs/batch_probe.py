# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The largest batch
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/batch_probe.ipynb)
#
# How many sequences fit on a card, and how many are worth it? The first question has one honest answer: try. The
# second one is full of rules of thumb, such as "always a power of two".
#
# **Guess first:** a step has `batch x 1,024` rows in every matmul. What could be special about 32 sequences that 31 do
# not have? And why does a try of one forward pass give a number that fails an hour later?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field, `micro_batch`, on the fastest recipe that one GPU runs, with and without the compiler. Then batch and
# context together, at the same number of tokens in every step. Last, how far each of three cards can go: the two
# smaller ones are *emulated*, which means that the allocator stops at their size while everything else is the card
# that is here.

# %%
from speedlab.lab import Lab
from speedlab.labs import emulated_cards
from speedlab.labs.steps import EAGER, TOP
from speedlab.measuring import batch_probe
from speedlab.publishing import figures_of_memory_labs as figures
from speedlab.publishing import tables_of_memory_labs as tables
from speedlab.publishing import words_of_memory_labs as words
from speedlab.recipe import one_line_diff

lab = Lab("batch_probe", profile=profile, steps=steps, source=source)
print(one_line_diff(TOP.but(micro_batch=8), TOP), "| without the compiler:", one_line_diff(TOP, EAGER))

# %% [markdown]
# ## Why it should be faster
#
# Launches and the optimizer are paid once for each step, so more sequences share them; once the kernels fill the card,
# nothing is left to share. The optimizer reads and writes a fixed number of bytes per weight, whatever the batch: at
# 8,192 tokens a step it is a noticeable part, at 65,536 hardly any.
#
# Nothing in this favours powers of two. With 1,024 tokens in a sequence, 31 sequences are 31,744 rows, a multiple of
# 1,024 like any other batch. What can differ is the last round of tiles: if a matmul has a few tiles more than the
# card has multiprocessors, they wait for a round of their own. That depends on the card and on the matmul, and favours
# whatever number fills the last round.
#
# Context and batch are not the same. Attention's arithmetic per token grows with the context; everything else is
# counted in tokens and does not care how they are cut into sequences.
#
# ## The change
#
# A search needs three things to be honest. A try must be a **whole step**, at least two of them: AdamW's moments
# appear with the first update, so that only the second step shows the peak. Every try starts in **emptied memory**,
# with a compiler that has seen no other shape. And the answer is a number that **was tried**, not one that was
# computed. An error that does not say "out of memory" is not an answer; it passes through.

# %%
lab.show_code(batch_probe.largest_that_fits, batch_probe.probe_micro_batch, (emulated_cards, "CARDS"))

# %% [markdown]
# ## Measured
#
# First the throughput over the batch. Filled points are powers of two: do they stand above the line through the
# others?

# %%
lab.run("batch_probe")
lab.show_words("batch_probe", words.batch_sentence)
lab.show_figure("batch_probe", figures.throughput_over_batch)

# %% [markdown]
# The same number of tokens in every step, cut into short or long sequences, and the limits of three cards as
# `speedlab probe-batch` finds them. That search starts from a straight line through the peaks measured above and then
# tries; the number beside each card is one that passed.

# %%
lab.show_words("batch_probe", words.grid_sentence)
lab.show_tables("batch_probe", tables.grid_and_limits)

# %% [markdown]
# ## What ran
#
# The numbers behind the first figure. The middle half of the steps says how sure a speed is: two batches whose ranges
# meet are equally fast, as far as anybody can tell. When the allocator has to hand unused blocks back to the driver
# before it finds room, that costs milliseconds and waits for the GPU, so a full card can be a slow one; the note says
# how often it happened. A CPU counts no memory, so those cells stay empty there.

# %%
lab.show_tables("batch_probe", tables.batch_tables)

# %% [markdown]
# ## Same training?
#
# No. A larger batch makes fewer updates for the same text, and chapter 9 shows what that does to the loss. That more
# sequences *fit* is no reason to train with them: accumulation (its own lab) gives any batch on any card. The probe
# itself leaves no trace. Models, optimizer states and compiled graphs of its tries are gone, the random state is put
# back, and a test sees that nothing of a try is alive when the next one starts.
#
# ## On other cards
#
# `speedlab probe-batch --recipe nine-steps/flash_attention` searches here; `--card-memory 14.5` does so within the
# memory that the allocator of a 16 GB card has. The emulation limits the allocator only. What the driver and libraries
# hold beside it is not counted, and speed stays that of the real card.

# %%
if source != "recorded":
    from speedlab.measuring.probe_rung import probe_rung

    found = probe_rung("nine-steps", "flash_attention", at_most=4, profile=profile)
    print(found.sentence())

# %% [markdown]
# ## What we learned
#
# * *The batch must be a power of two.* Look at 31, 32 and 33 above before you round down to 32.
# * *A longer context and a larger batch come to the same.* In tokens yes, in arithmetic no: see the second figure.
# * *It fitted in the first step, so it fits.* The first step of AdamW allocates the moments after the activations are
#   gone; the second needs both at once.
# * For your card: probe once, then take the smallest batch that is as fast as the largest one. What it leaves free
#   costs no speed, and keeps a step with longer texts or an evaluation from running out of memory.
#
# ## Try it yourself
#
# * No GPU: `largest_that_fits(lambda n: n <= 24, at_most=1000)` with a `print` in the function. How many tries does a
#   guess of 20 save?
# * No GPU: which batch has the fewest tiles in its last round, for tiles of 128 x 256, 132 multiprocessors and an output
#   of `batch x 1,024` by 3,072?
# * With a GPU: probe `nine-steps/torch_compile` and `nine-steps/merged_qkv`. Does the compiler fit more or fewer
#   sequences, and which tensors explain it?

# %%
lab.finish()
