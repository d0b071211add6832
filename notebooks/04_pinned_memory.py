# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pinned memory
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/04_pinned_memory.ipynb)
#
# The token ids of a batch are made on the host and must get to the card. Ordinary host memory may be moved or swapped
# out by the operating system at any moment, so the card cannot read it by itself. *Pinned* (page-locked) memory stays
# where it is. Most checklists for fast training contain the line `pin_memory=True`. What does it do for a language
# model?
#
# **Guess first:** how many bytes does a batch of 8 sequences with 1,024 ids have, targets included? How long does a
# PCIe link need for them?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field with three values. The chapter goes from the first to the last: pinned, and the host does not wait.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("04_pinned_memory", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# Start with the size. Ids are int64, and inputs and targets are two tensors:
#
# ```text
# 8 x 1,024 ids x 8 bytes = 64 KiB, twice: 128 KiB a step
# ```
#
# PCIe 4.0 with 16 lanes carries 31.5 GB/s in each direction by its specification. These 128 KiB take it 4.2
# microseconds. For comparison, 256 float32 images of 3 x 224 x 224 are 147 MiB and take 4.9 milliseconds. The copy
# itself is nothing to worry about here.
#
# The waiting may be. A copy from ordinary memory makes the host do three things:
#
# 1. It copies the ids into a page-locked buffer that the CUDA driver keeps for this purpose.
# 2. It queues the transfer from that buffer to the card. The queue is served in order, so the transfer comes after all
#    kernels of the step before.
# 3. It waits until the transfer is done. PyTorch does this after every copy that is not `non_blocking`, whatever the
#    size.
#
# So at every step the host stands still until the card has caught up. Then the card has an empty queue and waits in
# its turn, until the host has launched the next kernels. With pinned memory and `non_blocking=True` the transfer is
# one more entry in the queue, and the host runs ahead. What can be gained is that short gap. Its length depends on the
# speed of the host, not on the model; whether it shows depends on how long the step is beside it.
#
# Pinning has a price: somebody still has to copy the ids into page-locked memory. The `DataLoader` does it now, in
# place of the driver.
#
# The picture puts both forms beside each other. Look for the grey boxes: there somebody waits.

# %% mystnb={"image": {"alt": "Two timelines of host and card: from pageable memory the host waits for the copy and the card then idles; from pinned memory neither waits"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import pinned_transfer

display(SVG(pinned_transfer()))
chapter.show_prediction()

# %% [markdown]
# Such a prediction counts arithmetic and traffic on the card, and the launches. It knows nothing of copies from the
# host, so it gives both variants the same time.
#
# ## The change
#
# The table says what the three values mean, and `__next__` is where a batch leaves the host.

# %%
from speedlab.data import stream

chapter.show_code((stream, "HOST_MEMORY"), stream.BatchStream.__next__)

# %% [markdown]
# Not waiting has a danger: if the page-locked buffer were filled with the next batch while the card still reads it,
# the training would see wrong tokens. PyTorch's allocator for pinned memory guards against this. It notes an event
# behind each transfer and hands a buffer out again only after that event.
#
# ## Measured
#
# Fetching the batch is inside the timed step in both rows.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# The kernels of the step are the same in both variants. The evidence is in the names of the transfers, which are far
# too short to be among the longest; the second cell picks them out. The name says which kind of memory the card read
# from.

# %%
chapter.show_kernels()

# %%
sets = [*chapter.recorded.values(), chapter.live]
copies = [
    (record.device, record.rung, kernel["name"], kernel["calls"], kernel["time_us"])
    for records in sets for record in records for kernel in record.kernels if kernel["name"].startswith("Memcpy HtoD")
]
for device, rung, name, calls, time_us in copies:
    print(f"{device}, {rung}: {name}, {calls:g} a step, {time_us:.1f} microseconds together")
if not copies:
    print("No record with transfers from a host to a GPU here.")

# %% [markdown]
# ## Same training?
#
# The same ids arrive by another road. No arithmetic changes, so the losses must be equal bit for bit. This is also the
# test for the danger above: a batch that is overwritten too early would show up here.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# Pinning works on every CUDA card. A CPU has nothing to transfer, and asking for pinned memory there gives only a
# warning from PyTorch; the package does not ask.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Two opposite sentences go around: *"pinned memory is mandatory"* and *"pinned memory makes no visible difference"*.
# The *published* account of this ladder on an A100 (LLMs-from-scratch, README of the speed chapter) has 28,399 tokens
# per second before and 28,402 after. Both sentences leave out the size of the batch and the length of the step. The
# table above decides for 128 KiB and this step. Where steps are a hundred times shorter, or batches a thousand times
# larger, it decides nothing; the recipe for finding out is the same, though.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU needed: a step takes 100 milliseconds. How large must a batch be until its transfer over the link above
#   takes one per cent of that? How many images are that, how many token ids?
# * No GPU needed: make two `BatchStream`s with the same seed on `device="cpu"`, one `"pageable"`, one
#   `"pinned_non_blocking"`, and compare ten batches with `torch.equal`. What has the second one pinned?
#   (`stream.pins`)
# * With a GPU: queue a few large matrix products, then take the time of `next(stream)` with an ordinary clock, for
#   each of the three values. Two of them should be close to each other. Which, and what does the clock show for them?

# %%
chapter.finish()
