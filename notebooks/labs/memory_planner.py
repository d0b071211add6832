# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Memory planner
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/memory_planner.ipynb)
#
# Will it fit? Most people find out by running out. But every tensor that a training step holds is written in the
# program: its shape follows from the recipe, and how long it lives follows from autograd's rules. So the answer can be
# computed before anything runs, and then checked against the card.
#
# **Guess first:** GPT-2 124M has 163 million weights here, the head being untied. In float32 with AdamW that is about
# 2.6 GB of weights, gradients and moments. What share of the peak of a step with 8 sequences of 1,024 tokens is it?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Nothing in the training: a plan is made beside it. The experiment takes recipes that differ in size, format,
# attention, optimizer, batch and compilation, predicts each peak from the recipe alone, and runs whole optimizer steps
# to see.

# %%
from IPython.display import Markdown

from speedlab import memory_activations, memory_plan
from speedlab.cards import CARDS
from speedlab.lab import Lab
from speedlab.labs import memory_planner
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import memory_words
from speedlab.publishing.memory_report import memory_report
from speedlab.publishing.tables import render_tables

lab = Lab("memory_planner", profile=profile, steps=steps, source=source)
lab.show_code((memory_planner, "RECIPES"))

# %% [markdown]
# ## Why it should be faster
#
# It is not: a plan saves the hour in which a run dies, not a millisecond of a step. What it buys is the largest batch
# that fits, and batch is speed.
#
# A step holds seven kinds of bytes. *Weights* and the *optimizer's* moments stand all the time, *buffers* too.
# *Activations* grow through the forward pass, because each operation keeps what its backward pass will read.
# *Gradients* grow through the backward pass, while activations go. *Logits* come once, and are large. The rest is
# *workspace*. So a peak has a moment, and the plan compares four of them: the loss, the way back
# through the last block, the end of the way back, and the optimizer's step.
#
# At the loss stand all activations and three tensors of batch x context x vocabulary: the log-probabilities, their
# gradient, and the gradient of the logits. With 8 sequences in float32 each has `8 x 1,024 x 50,257 x 4 bytes`, which
# is 1.5 GiB. No gradient of a weight exists yet, so *weights + gradients + moments + activations* counts too much.

# %%
lab.show_code(memory_plan.loss_bytes, memory_activations.scores, memory_activations.layer_norm)

# %% [markdown]
# ## The change
#
# The command `speedlab memory` prints this for any size, recipe and card. Two rungs of the chapters, both in float32,
# on the smallest card of the list:

# %%
small = next(card for card in CARDS if card.slug == "tesla-t4")
for rung in ("baseline", "merged_qkv"):
    print(memory_report(NINE_STEPS.recipe_at(rung).but(precision="float32"), small), end="\n\n")

# %% [markdown]
# <!-- touch: memory-calculator -->
#
# ## Measured
#
# Each recipe takes one step that makes the optimizer's state, then the peak is reset and three whole steps follow. The
# first step alone would miss the moments during its forward pass. *Allocated* is what tensors held, and what the plan
# predicts; *reserved* is what the allocator took from the card. On a CPU nothing counts memory: those rows say so.

# %%
lab.run("memory_planner")
lab.show_words("memory_planner", memory_words.accuracy_words)
lab.show_figure("memory_planner", memory_words.planned_against_measured)

# %% [markdown]
# A ring that surrounds its dot is a good prediction. Where they part, something lives that the formulas do not know.
#
# ## What ran
#
# The numbers behind the figure, the largest error first, and the answer to the guess.

# %%
lab.show_words("memory_planner", memory_words.share_words)
lab.show_tables("memory_planner", memory_words.accuracy_table)

# %% [markdown]
# ## Same training?
#
# Yes, trivially. The question here is whether two planners say the same. `accelerate estimate-memory` reads a model's
# configuration, builds it without memory, and multiplies the bytes of its weights: by four for training with Adam in
# float32, by two (of the float32 bytes) for 16 bits
# ([its source](https://github.com/huggingface/accelerate/blob/00e4d264f66d9694ba6116a0dbe7ecec83655b43/src/accelerate/commands/estimate.py)).
# [Its page](https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator) says what it is for: to know
# whether a model can be loaded. Batch, context, vocabulary, attention and activations do not enter. Beside our plan,
# both by formula:

# %%
shown = ("baseline", "bfloat16", "flash_attention", "batch_size")
rungs = {NINE_STEPS.rung(key).title: NINE_STEPS.recipe_at(key) for key in shown}
plans = {title: memory_plan.plan_memory(recipe) for title, recipe in rungs.items()}
peaks = {title: plan.peak_allocated_bytes for title, plan in plans.items()}
Markdown(render_tables([memory_words.accelerate_table(rungs, peaks)], "markdown"))

# %% [markdown]
# ## On other cards
#
# By formula, for every card that the package knows. The reserve is a choice: a share for blocks that the allocator
# cannot fill, larger under autocast, and one GiB for CUDA itself, so that every rung of the ladders is covered. Those ran
# on a card that was nearly empty, and the allocator gives unused blocks back only when room gets short: what just does
# not fit by this table is worth a try. A card whose driver reports less than its data sheet says has less.

# %%
Markdown(render_tables([memory_words.card_table(rungs)], "markdown"))

# %% [markdown]
# ## What we learned
#
# * *A 7B model in 16 bits has 14 GB of moments and 7 GB of gradients.* AdamW has two moments. Two bytes each for seven
#   billion weights: 28 GB of moments, 14 of gradients, 14 of weights, together 56 GB before the first activation. With
#   float32 masters and moments it is 16 bytes a weight, 112 GB, the same as all in float32: mixed precision saves
#   activations and time, not state. The table has the 6.74 billion that LLaMA-7B really has.
# * *A LLaMA-like model needs a formula of its own.* A small one: SwiGLU has three matmuls, nothing has a bias. The
#   table is on paper, nothing of it was run here.
# * *Checkpointing cuts activations several-fold.* It does, and it leaves logits and state where they are.
# * For your card: ask the plan first, take the switches in its order, and try once where it says that it just fits.
#   [All levers together](together) does this on emulated cards, with what the plan had said beside what came.

# %%
Markdown(render_tables([memory_words.paper_table()], "markdown"))

# %% [markdown]
# ## Try it yourself
#
# * No GPU: `speedlab memory --layers 48 --width 1600 --heads 25 --card nvidia-a100-40gb`. Which switch pays most? Set
#   it with `--set FIELD=VALUE`; was the order of the list the right one for you?
# * No GPU: for which batch does the optimizer's step become the peak? `plan_memory(recipe).moments` holds all four.
# * With a GPU: `torch.cuda.memory._record_memory_history()` around one step, and look at the snapshot. Find the three
#   tensors of the loss.

# %%
lab.finish()
