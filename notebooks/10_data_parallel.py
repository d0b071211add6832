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
# Data sheets give NVLink 300 GB/s in each direction on an A100 and 450 GB/s on an H200, and PCIe 4.0 x16
# 31.5 GB/s. For four GPUs that is at least 1.6 ms, 1.1 ms or 15.5 ms. Put this beside the step time below.
#
# Why twice, and why `n - 1`? Each GPU cuts its gradient into `n` chunks. In the first `n - 1` rounds every chunk
# travels once around the ring and is added to on its way. In the next `n - 1` rounds the finished sums travel around
# and are copied. No GPU ever sends a whole gradient at once, and all links work in every round.

# %% mystnb={"image": {"alt": "Seven squares of four GPUs by four chunks: sums grow along the diagonal for three rounds, then three more rounds hand them on to all"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import overlap, ring_all_reduce

SVG(ring_all_reduce())

# %% [markdown]
# Nor must it be waited for. The backward pass begins at the last layer, and the gradients of that layer are ready
# while the others are still being computed. DistributedDataParallel (DDP) collects gradients in buckets of about 25
# MiB and sends a bucket as soon as it is full. Only the last one has nothing left to hide behind, and it is a large
# one: the token table, 74 MiB in bfloat16, gets its gradient at the very end.
#
# Hidden is not free. The kernels that send occupy multiprocessors and memory bandwidth which the matmuls would have
# used, and a model that `torch.compile` cuts at every bucket fuses less. So the step can grow by more than the link
# needs, although the timeline shows no waiting.
#
# The picture puts the sending of the buckets below the backward pass, by formula: the arithmetic at the peak of a data
# sheet, which no real step reaches. A slower backward pass hides more.

# %% mystnb={"image": {"alt": "A bar for the backward pass above the buckets sent over two links: over NVLink they are slivers, over PCIe they fill the time and run on after it"}}
display(SVG(overlap()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# `torchrun` starts one process per GPU and tells each its place. The code must live in a module: a new process cannot
# run a notebook cell. The launcher waits for all of them. If one fails, it ends the others and raises that one's own
# last line here; results come back as a JSON file that rank 0 alone writes. The processes are new ones, so this also
# works when the notebook has used the GPU before.
#
# Each process draws the same weights, takes another part of the batches (PyTorch's `DistributedSampler`, told of each
# new epoch, or every epoch would have the same order), and wraps its model once.
#
# Details that deserve a look. The device comes from `LOCAL_RANK`: `set_device(rank)` works on one machine and fails on
# the second one, where rank 8 has no GPU number 8. With gradient accumulation only the last micro-step exchanges; DDP
# decides that in the *forward* pass, so `no_sync` has to hold forward and backward. A static graph is learned in the
# first step, and that one must be exchanged, or an assertion inside PyTorch fails.
#
# The last table counts the lines of this package that one GPU does not need.

# %%
from speedlab import several_gpus
from speedlab.training import distributed, launching, parallel
from speedlab.training.step import TrainingStep

chapter.show_code(distributed.process_group, parallel.Replicated, TrainingStep.__call__, launching.launch)
several_gpus.show_lines()

# %% [markdown]
# ## Measured
#
# Times and memory are those of rank 0, tokens those of all processes. With one GPU, as on Colab, the second row says
# that it is unavailable and why. Without a GPU two processes on the CPU talk through gloo. They share the cores, so
# **that run shows that the exchange is correct, and nothing about speed**.
#
# The table of several GPUs comes from another machine, and from one session on it: one GPU there is measured again,
# so no ratio crosses machines. *Each keeps* is the scaling divided by the number of GPUs. Two ways to share the work:
# each GPU brings its own batch (weak scaling), or one batch is divided among them (strong scaling), which leaves each
# GPU less to hide the same exchange behind.

# %%
chapter.measure()
several_gpus.show_series()

# %% [markdown]
# ## What ran
#
# The exchange is the kind *communication* (NCCL on GPUs). Two things to look for. If the kernels of a step add up to
# more than the step took, some of them ran at the same time: that is the overlap. And the time of an NCCL kernel
# includes its wait for the slowest GPU, so a long one does not prove a slow link.
#
# The recorded tables take the exchange apart.
#
# * A step of rank 0 on a line of time: *computing*, *exposed exchange* (communication while no other kernel ran) and
#   *pauses* (no kernel at all) add up to the step. Of the exchange, *by the link's rate* is what its bytes would need
#   alone, and *begins after* is counted from the update before.
# * The sweep changes one thing about the exchange in each row. *No clear difference*: the middle halves of the samples
#   meet, or the interval of the ratio holds 1.
# * The stages start from the same program on each GPU without DDP, which shows what a neighbour costs that is never
#   waited for. DDP that sends nothing adds buckets and the cut graph. The rest is the exchange.
#
# Joules stand beside the times. Where cards run at their power limit, more work in a step slows the clocks, so that
# even a hidden exchange lengthens the matmuls beside it, and an idle link is not the only place to look for time.

# %%
chapter.show_kernels()
several_gpus.show_exchange()

# %% [markdown]
# ## Same training?
#
# The mean of the gradients of `n` equal batches is the gradient of the `n` batches together. DDP on two GPUs with 16
# sequences each is one GPU with 32, up to rounding; the series *32 sequences in all* above is held to that. The tests
# compare two and four gloo processes with plain PyTorch on the joined batch, to 1e-5. Here every GPU keeps its 32, so
# the losses belong to another optimization and are shown, not compared. They are means over all processes.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# DDP runs on any GPU; the link decides how much of the exchange can hide.
#
# When the model does not fit, DDP is no help: each GPU holds all of it, 16 bytes for each weight with AdamW in
# float32. **FSDP2** (`fully_shard`) splits weights, gradients and optimizer state, so each of `n` GPUs holds a share,
# and gathers the weights of one block when it is needed. It is `sharding="fsdp2"` here, and sends half as much again:
# weights are gathered twice, gradients scattered once. GPT-2 124M needs none of it. When a single layer or its activations
# are too large, layers themselves are cut: tensor parallelism inside a machine, pipelines between machines.
#
# **Several machines.** The same lines on each of them, here two with eight GPUs each; the first one's name and a free
# port are where they meet.
#
# ```bash
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1     # so that a machine that died can come back
# torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 \
#   --rdzv-backend c10d --rdzv-endpoint first-machine:29500 --rdzv-id gpt2 \
#   -m speedlab.measuring.several_machines --recipe published --out records
# ```
#
# A machine that fails ends the step on all; the agents on the others wait, and go on when it is started again with
# the same line. Training then starts anew, unless the program keeps checkpoints. Under Slurm,
# after the first line `#!/bin/bash`:
#
# ```bash
# #SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --time=00:10:00
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --max-restarts 3 \
#   --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
#   -m speedlab.measuring.several_machines --recipe published --out records
# ```
#
# The figure below goes on to 512 GPUs by formula. A ring sends almost the same bytes on any number of GPUs but needs
# `2 (n - 1)` rounds; a tree needs `2 log2(n)`. What is left after hiding is added to the step.

# %%
chapter.show_other_cards()
several_gpus.show_sharding()
several_gpus.show_model()

# %% [markdown]
# ## What we learned
#
# Scaling efficiency is the speed-up divided by the number of GPUs. What was reached, and with which recipe, stands
# below; so does the stopwatch.
#
# * *2.95x on four cards, the rest is communication.* The factor is published (LLMs-from-scratch, four A100), not
#   measured by us. Its stopwatch starts before an evaluation, every 10 steps on one GPU and every 5 on four. An
#   interval is then `k x step + evaluation`, and the part that does not scale weighs twice as much on four GPUs. The
#   tasks have the sum. The table below puts the same steps under both stopwatches, and says how much each loses.
# * *NVLink gives over 90 %.* At a batch of its own for each GPU; look at *each keeps*, and at the row of one batch divided.
# * *DDP reduces after the backward pass.* If nothing overlapped, the step would be longer than a single GPU's by the
#   whole communication time. Both are in the tables, and *begins after* says when the first bucket left.
# * *About 20 lines.* Count what is printed above that would not be there for one GPU.
# * *"Expected to have finished reduction" comes from `torch.cat`.* It comes from weights that got no gradient in a
#   step, for example behind a branch not taken: their bucket never fills.

# %%
chapter.show_lesson()
several_gpus.show_lesson()
several_gpus.show_stopwatch()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: the published figures are 142,156 tokens a second for one A100 and 419,259 for four, with 32 x 1,024 tokens
#   per GPU and step. Suppose that scaling was perfect. Write down `step + evaluation/10` and `step + evaluation/5`, and
#   solve for both. How long would an evaluation be, and do you find it plausible?
# * No GPU: which gradient is ready first, and which last? Would a tied head, sharing the table's gradient, help?
# * With two GPUs: set `accumulation` to 4 and take `no_sync` away. Which row of kernels changes, and by what factor?
# * With two GPUs: `speedlab scaling --worlds 1,2 --out DIR` measures everything above on your machine.

# %%
chapter.finish()
