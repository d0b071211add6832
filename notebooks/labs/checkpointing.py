# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Activation checkpointing
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/checkpointing.ipynb)
#
# A backward pass needs what the forward pass computed. Keeping all of it is what fills a card. Part of it can be thrown
# away and computed again, or put into the host's memory. What does each cost?
#
# **Guess first:** a backward pass is twice the arithmetic of a forward pass. If every block runs forward once more, by
# how much does a step grow? Is a group of six blocks cheaper than six single ones? Which activations would you rather
# keep?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field of the recipe, `checkpointing`, with six values. Beside them stand the forms that PyTorch brings along, as
# people call them in one line.

# %%
from speedlab.lab import Lab
from speedlab.labs import checkpointing as experiment
from speedlab.publishing import figures_of_memory_labs as figures
from speedlab.publishing import tables_of_memory_labs as tables
from speedlab.publishing import words_of_memory_labs as words
from speedlab.recipe import CHOICES
from speedlab.training import checkpointing

lab = Lab("checkpointing", profile=profile, steps=steps, source=source)
print("checkpointing:", ", ".join(CHOICES["checkpointing"]))

# %% [markdown]
# ## Why it should be faster
#
# It should be slower. It buys memory, and memory can buy a batch or a context that would not fit otherwise. By
# arithmetic, recomputing every block adds one forward pass to three parts (one forward, two backward): a third at most,
# less where attention's backward pass, head and optimizer, which are not repeated, take their share. That is
# arithmetic. Where memory traffic or the host sets the pace, as with attention written out or with small batches, the
# forward pass is a larger part of the time, and so is its repetition.
#
# What does it save? A block with fused attention keeps about fifteen tensors of the full width (inputs of both norms,
# queries, keys, values, attention's output, and four widths before and after GELU). Checkpointed, it keeps one. With
# twelve blocks, groups of `g` keep `12 / g` inputs. While a group is recomputed, all activations of its `g` blocks exist
# again, but at another moment than the logits. As long as they take less than the logits did, the peak stays at the loss
# and larger groups hold a little less; a group of all blocks brings everything back at once. So *larger groups save
# little more*, and at last nothing. Nor do they cost less: every block runs again exactly once, whatever the group.
#
# The **selective** policy keeps what is dear to make, the outputs of matmuls and of the attention kernel, and makes the
# cheap rest again: norms, GELU, additions, dropout. *Leave out the LayerNorm because it is small* has it backwards. A
# LayerNorm keeps a full-width tensor like a matmul does, and costs a few operations per element to make again where a
# matmul costs some 1,500.
#
# **Offloading** moves the same bytes over the bus twice instead. A PCIe link of 25 to 50 GB/s needs longer for a tensor
# than the card needs to compute most of them again.
#
# All of this counts the work of the GPU. Where the host sets the pace, as with few tokens in a step and no compiler, a
# step grows by the time that it takes to *queue* the repeated work, which can be far more.
#
# ## The change
#
# Checkpointing is put on from outside, to a model that knows nothing of it. The non-reentrant form is used throughout.
# The random state is put back for the second run, otherwise dropout would draw other masks and the gradients would be
# those of another network, without any error. The selective policy needs one more thought: a kept attention kernel
# draws nothing in the second run, which would shift every draw after it, so that dropout's output is kept as well.

# %%
lab.show_code(
    checkpointing.recomputed, checkpointing.checkpoint_every, checkpointing.checkpoint_groups,
    checkpointing.keep_matmuls_and_attention, (checkpointing, "CHECKPOINTING"),
)

# %% [markdown]
# The one-line forms differ in what they do, not only in their names:
#
# * `checkpoint_sequential(blocks, segments, x)` divides blocks by segments, rounds down, and leaves the **last segment
#   unchecked**, remainder included. Twelve segments of one block checkpoint eleven; two segments checkpoint six blocks
#   and keep everything of the other six, so that they save less than half.
# * `checkpoint_wrapper` from `torch.distributed` is our `every_block` with a module around each block, which changes the
#   names of all weights inside; it strips them again when a state is saved.
# * `gradient_checkpointing_enable()` of Hugging Face's transformers calls `checkpoint` around each block too; it is
#   measured on that library's own models below. It defaulted to the **reentrant** form, explicitly since
#   [pull request 28538](https://github.com/huggingface/transformers/pull/28538), and changed to the non-reentrant one
#   with [pull request 43203](https://github.com/huggingface/transformers/pull/43203). So it does what the row `reentrant`
#   or the row `every_block` does, depending on its version.

# %%
lab.show_code(experiment.by_segments, experiment.by_wrapper, experiment.reentrant_blocks)

# %% [markdown]
# ## Measured
#
# Time on the left, memory on the right, without the compiler. The table adds four times the context (and a quarter of
# the sequences), and the compiler. That one decides for itself what is cheap to make again, even where nothing is
# checkpointed: compare its plain step with the eager one before comparing ways.

# %%
lab.run("checkpointing")
lab.show_words("checkpointing", words.checkpointing_sentence)
lab.show_figure("checkpointing", figures.checkpointing_ways)
lab.show_tables("checkpointing", tables.checkpointing_table)
lab.show_words("together_hf", words.enable_sentence)

# %% [markdown]
# Along one step, memory rises with every block forward and falls with every block backward. Checkpointed, it rises by
# one tensor per block, and each block backward brings back what one block keeps. What remains at the turn is the head:
# its logits and their gradient, which no checkpointing of blocks touches.

# %%
lab.show_figure("checkpointing", figures.memory_along_a_step)

# %% [markdown]
# What this buys on smaller cards, which are emulated here: the largest batch, the longest context of one sequence, and
# the speed over how full the card is. The advice is to aim at 70 to 80 %.

# %%
lab.run("memory_limits")
lab.show_words("memory_limits", words.limits_sentence)
lab.show_tables("memory_limits", tables.limits_table)
lab.show_words("memory_limits", words.fill_sentence)
lab.show_figure("memory_limits", figures.throughput_over_fill)

# %% [markdown]
# ## What ran
#
# How many attention and feed-forward parts a step began to run forward, recomputation included: that is what a way
# really does, whatever it is called. (For the selective policy the count would mislead: it enters every part again and
# takes the dear results from its store. A test counts its kernels instead.)

# %%
lab.show_tables("checkpointing", tables.runs_table)

# %% [markdown]
# ## Same training?
#
# Yes, and exactly: the second run repeats the first. Tests compare every gradient bit for bit on a CPU, with dropout,
# under autocast, with the scaler of float16, and one compiled. On a GPU the last column of the table above gives the
# difference from a plain step with dropout at work, relative to the size of the gradients; the plain step against
# itself shows what a repetition alone changes. Kernels that add in no fixed order leave a little. Another dropout mask
# would be no little difference, but another gradient: the first exercise shows it.
#
# ## On other cards
#
# The limits above were found by whole training steps. The cards are emulated by limiting the allocator: memory is
# theirs, speed is that of the card that measured. How full may a card be? As full as it goes, while the allocator finds
# room without handing blocks back. What counts is the speed, which levels off long before the card is full:

# %%
lab.show_tables("memory_limits", tables.fill_table)

# %% [markdown]
# ## What we learned
#
# * *Checkpointing costs 30 %.* A third at most is the arithmetic of the blocks, where the GPU sets the pace; look at
#   eager and compiled above.
# * *Per layer is slow, use larger blocks.* The runs are counted: the same number for every size of group.
# * *Fewer checkpoints save more memory.* A little, while the peak is at the loss; compare `every block`, `groups of 6`
#   and `groups of 12`.
# * *Non-reentrant checkpointing needs more memory* ([one report](https://github.com/axolotl-ai-cloud/axolotl/pull/1167)).
#   Both forms stand in the first figure.
# * *Aim at 70 to 80 % of the card.* The last figure says what that gives up, or gains.
# * It is a lever of memory. If the batch fits already, leave it off.
#
# ## Try it yourself
#
# * No GPU: set `preserve_rng_state=False` in `recomputed` and run the tests of `tests/test_checkpointing.py`. Which fail,
#   and which would not have noticed without dropout?
# * No GPU: for 12 blocks that keep 15 tensors each and 1 when checkpointed, which group size keeps the least? And for
#   48 blocks?
# * With a GPU: write a policy that keeps matmuls but not attention. What does it save at a context of 4,096, and what
#   does it cost?

# %%
lab.finish()
