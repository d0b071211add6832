# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # All levers together
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/together.ipynb)
#
# Three levers are named wherever a model is too large for a card: FlashAttention, activation checkpointing, a better
# data pipeline. They do different things. Which of them do you need, in which order, and what do they give together?
#
# **Guess first:** a model of 350 million weights is to train on two sequences of 8,192 tokens at once, on a card of
# 24 GB. How much memory does it need as it is? Is FlashAttention enough? Is checkpointing enough?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Two fields of the recipe, `attention` and `checkpointing`, and where the ids come from: text that is tokenised while
# the model trains and copied from ordinary memory, or a mapped file of ids, loaded ahead and double-buffered. First each
# alone, then all.

# %%
from speedlab import memory_path
from speedlab.lab import Lab
from speedlab.labs import together as experiment
from speedlab.labs import together_hf
from speedlab.publishing import figures_of_labs_data as figures
from speedlab.publishing import tables_of_labs_data as tables
from speedlab.publishing import words_of_labs_data as words

lab = Lab("together", profile=profile, steps=steps, source=source)
lab.show_code((experiment, "VARIANTS"))

# %% [markdown]
# ## Why it should be faster
#
# Only one of the three is about speed. **FlashAttention** does the same arithmetic without storing the scores, and is
# faster for it. **Checkpointing** computes each block's forward pass again, and so is slower; it buys memory, which may
# buy a batch or a context. **A pipeline** gains what the GPU waited for, which is nothing if it did not wait.
#
# What fits can be said before anything runs. The path below asks one question after the other and needs no GPU: call
# `decide` with your own recipe and card, or `speedlab memory` for all switches at once.

# %%
lab.run("together")
lab.show_code(memory_path.decide, memory_path.workers_needed)
lab.show_tables("together", tables.path_tables)

# %% [markdown]
# Smaller passes come before checkpointing: the same tokens in two passes cost two queues of launches, while computing
# every block again costs up to a third of the arithmetic, and more of the time where attention is written out, because
# its squares are written and read again too. That holds as long as one pass still fills the card. It is no way out when
# a single sequence does not fit.
#
# ## The change
#
# The limits of smaller cards are **emulated**: the allocator of the large card refuses more than the small one has, less
# what a driver and its libraries keep there. Memory is that of the small card, speed is not.

# %%
lab.show_code(experiment.together, experiment.budget_card)

# %% [markdown]
# ## Measured
#
# On the whole card, at a context at which even the plain form fits. The marks are what the plan said before.

# %%
lab.show_words("together", words.together_words)
lab.show_figure("together", figures.levers)

# %% [markdown]
# And at the context that is wanted, on smaller cards, at once (`2 x 1`) or one sequence after the other (`1 x 2`), beside
# what the plan had said before the run. A row keeps the prediction that it was made with. Where the formulas learned
# something from it, the next run shows it; a test holds today's plan to two per cent of every recorded peak.

# %%
lab.show_words("together", words.budget_words)
lab.show_tables("together", tables.budget_tables)
lab.show_words("together", words.plan_words)

# %% [markdown]
# ## What ran
#
# The share of the time in which the device waited for data says whether the pipeline had anything to gain here. Where
# it does not wait, the best pipeline gains nothing.

# %%
lab.show_tables("together", tables.levers_table)

# %% [markdown]
# ## Same training?
#
# The last columns of the table: the first losses, from the same weights on the same batches. Checkpointing repeats the
# arithmetic: with attention written out its losses agree in every digit shown. Fused attention sums in another order,
# and its backward pass in no fixed one, so that rows with it differ among themselves as well. The first steps of a fresh
# model without a warm-up are the place where such differences grow fastest. Tests compare losses on a CPU, and gradients
# of the models below.
#
# ## On other cards
#
# Whatever the card, the order of the questions is the same; only the answers move. Cards without bfloat16 units take
# float16 and have no FlashAttention kernel, but a tiled one that saves the same memory.
#
# **Other people's models.** The same levers on a GPT-2 and a small Llama of Hugging Face's transformers, from a
# configuration and with random weights: `attn_implementation`, gradient checkpointing (`gradient_checkpointing_enable`,
# which version 5 renamed), Accelerate's `mixed_precision="bf16"` and `accumulate`. The stopwatch is `speedlab.measure`,
# which times any step that is a function. Extra `hf` installs both libraries.

# %%
lab.run("together_hf")
lab.show_code(together_hf.AcceleratedStep)
lab.show_words("together_hf", words.other_models_words)
lab.show_figure("together_hf", figures.levers_of_other_models)
lab.show_tables("together_hf", tables.other_models_table)

# %% [markdown]
# ## What we learned
#
# * *Use all three.* They answer different questions. Fuse attention always; take the other two when something is missing.
#   On the small models of Hugging Face all levers together are far slower than two of them: halved passes that run
#   every block again are too small to keep the card busy.
# * *Selective checkpointing is the cheap kind.* In arithmetic it is. Without a compiler its policy is asked in Python at
#   each operation, which the host has to pay: compare the last two rows of the first table, and the compiled ones of
#   [Activation checkpointing](checkpointing.ipynb).
# * *Checkpointing makes training faster, because the batch gets larger.* Compare *FlashAttention, 1 x 2* with *all three,
#   2 x 1*: the same tokens on the same card.
# * *Accumulation, checkpointing and loading give another factor of speed.* The first figure says what each gave: memory
#   or nothing, where the card was busy before.
# * A plan on paper decides what fits, within a reserve. It costs nothing to ask it first, and near the limit one try to
#   be sure.
#
# ## Try it yourself
#
# * No GPU: `decide(recipe, card)` for your own card. Which question stops the path?
# * No GPU: at which context does one sequence of this model not fit 24 GB any more, even with everything?
# * With a GPU: `SPEEDLAB_GPU_MEMORY_GIB=12 speedlab experiment together` limits the whole session. What is left?

# %%
lab.finish()
