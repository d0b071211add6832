# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Gradient accumulation
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/accumulation.ipynb)
#
# A batch that does not fit can be split: run its parts one after another, add up their gradients, update once. Is that
# the same training? Is it slower, or even faster?
#
# **Guess first:** K parts take K forward and backward passes and one update instead of K. What is saved, and what is
# lost against one large batch? By what must each part's loss be divided, and when must gradients be clipped?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field, `accumulation`, the number K of micro-batches for each update. Tokens per step grow with it, so that
# tokens per second, not milliseconds per step, can be compared.

# %%
from speedlab.lab import Lab
from speedlab.labs.steps import EAGER
from speedlab.publishing import figures_of_memory_labs as figures
from speedlab.publishing import tables_of_memory_labs as tables
from speedlab.publishing import words_of_memory_labs as words
from speedlab.recipe import one_line_diff
from speedlab.training import optimizer
from speedlab.training.step import TrainingStep

lab = Lab("accumulation", profile=profile, steps=steps, source=source)
small, split = EAGER.but(micro_batch=8), EAGER.but(micro_batch=8, accumulation=4)
print(one_line_diff(small, split), "| tokens per step:", small.tokens_per_step, "->", split.tokens_per_step)

# %% [markdown]
# ## Why it should be faster
#
# Against the same micro-batch with an update each time, only the update is saved: K - 1 of K. So the gain is at most
# the update's share of a step, which the second panel below shows falling as `1 / K`. Against **one large batch** of the
# same size nothing is gained: every part launches all kernels anew, and small parts fill the card less. Gradients are
# added to what is there already, one more read and write of each.
#
# Memory is the reason to do it. Activations are those of one part, whatever K is; weights, gradients and moments do not
# change. In the plain step the gradients of the last update are freed before the next forward pass; with accumulation
# they live through K - 1 of the forward passes, so the peak is that of the part plus one set of gradients.
#
# ## The change
#
# Three places where it goes wrong elsewhere, all in the step below. Each part's loss is a mean over its tokens, so it is
# divided by K: otherwise gradients are K times too large. AdamW hides that, because it divides by their size, and
# clipping does not: its limit becomes K times smaller in effect. Clipping comes **once**, after the last part. And with
# the scaler of float16 it comes after the gradients are unscaled, otherwise a limit of 1 meets gradients that are
# thousands of times too large.

# %%
lab.show_code(TrainingStep.__call__, TrainingStep.update, optimizer.clip_gradients)

# %% [markdown]
# ## Measured
#
# First the same micro-batch with more and more parts for each update, then the same update in one piece or in parts:
# what does each split cost in speed, and save in memory?

# %%
lab.run("accumulation")
lab.show_words("accumulation", words.accumulation_sentence)
lab.show_figure("accumulation", figures.speed_over_micro_steps)
lab.show_tables("accumulation", tables.accumulation_tables)

# %% [markdown]
# Memory grows once, from K = 1 to K = 2, by one set of gradients, and never again. Time for each part stays what it was,
# until parts become so small that the host needs longer to queue one than the GPU to run it. From there on the update
# pays for each part, whatever its size.
#
# ## What ran
#
# The number of parts is no part of the model: one compiled graph serves every K, which is why all rows of the compiled
# line above come from one compilation. What the update costs by itself is timed on the gradients that the last step
# left behind. Two more steps add clipping, and the scaler of float16, which looks for overflow once per update. That one
# runs autocast on float32 weights, another recipe altogether: compare it with nothing but itself.

# %%
lab.show_tables("accumulation", tables.accumulation_extras)
lab.show_words("accumulation", words.clipping_sentence)

# %% [markdown]
# ## Same training?
#
# The gradient of K parts is that of the whole batch, as far as the number format goes. Below, four sequences in one
# piece against four pieces, dropout off: float32 differs by the order of additions alone, 16-bit formats round each
# part by themselves, and pure bfloat16 also adds the parts up in bfloat16. Tests compare gradients, losses and updated
# weights with a plain PyTorch loop over the whole batch, with and without clipping and scaler. They rely on parts of
# equal size: where sequences differ in length, a mean of means is another number than the mean, and each part would
# have to be weighted by its tokens.

# %%
lab.show_tables("accumulation", tables.gradient_table)

# %% [markdown]
# ## On other cards
#
# A small card gets any batch this way, at the speed of the micro-batch that fits; [The largest batch](batch_probe)
# finds that one. So take the largest micro-batch that fits, and as few parts as the batch that you want allows. A slower
# card is kept busy by smaller parts than the one that measured here. On several GPUs there is one more reason: only the
# last part has to exchange gradients (`no_sync` around the others, forward pass included), which chapter 10 shows.
#
# ## What we learned
#
# * *Accumulation makes training faster.* By the update's share and no more; against a large batch that fits it is
#   slower.
# * *Accumulation needs no more memory.* It keeps a set of gradients alive during the forward passes, which is little
#   beside the activations that it saves. Compare K = 1 with K = 2 above.
# * *The order does not matter.* Divide by K, add up, unscale, clip, update: any other order is another training.

# %%
lab.finish()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: remove the division by `accumulation` in `TrainingStep` and run `tests/test_accumulation.py`. Which tests
#   notice, and would the loss curve have told you?
# * No GPU: parts with 100 and 300 tokens have mean losses of 4 and 2. What is the mean over all tokens, and what does
#   the mean of means say?
# * With a GPU: at which micro-batch does one more doubling of it beat one more doubling of K by less than 2 %?
