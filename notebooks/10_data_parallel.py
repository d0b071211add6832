# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DistributedDataParallel
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/10_data_parallel.ipynb)
#
# One card is busy. Several cards could each take a batch of their own, provided that they agree on the gradients
# before every update. How near to "n cards, n times the tokens" does that come, and what is lost on the way?
#
# **Guess first:** every GPU must learn the mean of 163 million gradients in every step. Over the link between your
# cards, how long does that take beside the step itself? Does the step have to wait for it?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field: the number of processes, each with one GPU and its own 32 sequences. So this changes the training as well:
# an update sees as many times more tokens as there are GPUs, and the learning rate stays.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("10_data_parallel", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# The work of one GPU does not change; there are more of them. What is added is an exchange. The gradients of 163
# million weights in bfloat16 are 326 MB, and a ring of `n` GPUs sends
#
# ```text
# bytes per GPU = 2 x (n - 1) / n x 326 MB      326 MB for two GPUs, 489 MB for four
# ```
#
# Data sheets give NVLink 300 GB/s in each direction on an A100 and 450 GB/s on an H200, and PCIe 4.0 x16 about 32
# GB/s. For four GPUs that is at least 1.6 ms, 1.1 ms or 15 ms. Put this beside the step time below.
#
# Nor must it be waited for. The backward pass begins at the last layer, and the gradients of that layer are ready
# while the others are still being computed. DistributedDataParallel (DDP) collects gradients in buckets of about 25
# MiB and sends a bucket as soon as it is full. Only the last one has nothing left to hide behind, and it is a large
# one: the token table, 74 MiB in bfloat16, gets its gradient at the very end.

# %%
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# `torchrun` starts one process per GPU and tells each its place. The code must live in a module: a new process cannot
# run a notebook cell. Each process draws the same weights, takes another part of the batches (PyTorch's
# `DistributedSampler`, told of each new epoch, or every epoch would have the same order), and wraps its model once.
#
# Two details deserve a look. The device comes from `LOCAL_RANK`: `set_device(rank)` works on one machine and fails on
# the second one, where rank 8 has no GPU number 8. And with gradient accumulation only the last micro-step exchanges;
# DDP decides that in the *forward* pass, so `no_sync` has to hold forward and backward.

# %%
from speedlab.training import distributed
from speedlab.training.step import TrainingStep

chapter.show_code(distributed.process_group, distributed.Place.parallelize, TrainingStep.__call__, distributed.launch)

# %% [markdown]
# ## Measured
#
# Times and memory are those of rank 0, tokens those of all processes. With one GPU, as on Colab, the second row says
# that it is unavailable and why. Without a GPU two processes on the CPU talk through gloo. They share the cores, so
# this can show that the exchange works, not that it is fast.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# The exchange is the kind *communication* (NCCL on GPUs). Two things to look for. If the kernels of a step add up to
# more than the step took, some of them ran at the same time: that is the overlap. And the time of an NCCL kernel
# includes its wait for the slowest GPU, so a long one does not prove a slow link.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# The mean of the gradients of `n` equal batches is the gradient of the `n` batches together. DDP on two GPUs with 16
# sequences each would be one GPU with 32, up to rounding. Here every GPU keeps its 32, so the losses belong to another
# optimization and are shown, not compared. They are means over all processes.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# DDP runs on any GPU. The link decides how much of the exchange can hide, and the table below stands for machines with
# one card each.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Scaling efficiency is the speed-up divided by the number of GPUs.
#
# * *2.95x on four cards, the rest is communication.* The factor is published (LLMs-from-scratch, four A100), not
#   measured by us. Its stopwatch starts before an evaluation, every 10 steps on one GPU and every 5 on four. An
#   interval is then `k x step + evaluation`, and the part that does not scale weighs twice as much on four GPUs. The
#   tasks have the sum.
# * *NVLink gives over 90 %.* The formula above needs only your link, your step and no harness. Then measure.
# * *DDP reduces after the backward pass.* If nothing overlapped, the step would be longer than a single GPU's by the
#   whole communication time. Both are in the tables.
# * *About 20 lines.* Count what is printed above that would not be there for one GPU.
# * *"Expected to have finished reduction" comes from `torch.cat`.* It comes from weights that got no gradient in a
#   step, for example behind a branch not taken: their bucket never fills.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: the published figures are 142,156 tokens a second for one A100 and 419,259 for four, with 32 x 1,024 tokens
#   per GPU and step. Suppose that scaling was perfect. Write down `step + evaluation/10` and `step + evaluation/5`, and
#   solve for both. How long would an evaluation be, and do you find it plausible?
# * No GPU: which gradient is ready first, and which last? Would a tied head, sharing the table's gradient, help?
# * With two GPUs: set `accumulation` to 4 and take `no_sync` away. Which row of kernels changes, and by what factor?

# %%
chapter.finish()
