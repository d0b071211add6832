# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention from the inside
#
# Chapter 7 replaces one call by another and the square of scores is gone. Here is what happens inside: the algorithm as
# a page of PyTorch, the same as a GPU kernel, and all the kernels that others wrote, over contexts of 256 to 16,384.
#
# **Guess first:** twelve heads of width 64, the same number of tokens in ever longer sequences. Which of time and
# memory grows for plain attention, and which for a tiled kernel? Would eight times fewer keys make it faster?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Attention alone, outside the model, on random inputs: forward and backward, 65,536 tokens in a call on a GPU, so that
# twice the context means half the sequences. Everything but attention is out of the picture; for the whole step see
# chapter 7.

# %%
from IPython.display import SVG

from speedlab.lab import Lab
from speedlab.model import tiled_attention
from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_labs_inside as words
from speedlab.publishing.diagrams import flash_attention_tiling

lab = Lab("attention", profile=profile, steps=steps, source=source)
lab.run("attention_sweep")
lab.run("attention_traffic")

# %% [markdown]
# ## Why it should be faster
#
# By arithmetic it should not: a tiled kernel computes the scores twice, once in each pass. But plain attention writes
# them to memory and reads them back several times. Counted by formula for the forward pass of one GPT-2 layer, and
# read from the card's own counters by Nsight Compute where this is allowed:

# %%
lab.show_table(
    "attention_traffic",
    {"bytes": "what", "attention": "kind", "MiB": words.mebibytes("bytes"),
     "read": words.mebibytes("read_bytes"), "written": words.mebibytes("written_bytes")},
)

# %% [markdown]
# ## The change
#
# The forward pass, tile by tile. A tile of queries keeps three things: its largest score so far, the sum of
# exponentials, the output. The diagram below is drawn from this very function. The backward pass needs the
# probabilities again; from the stored logarithm of each row's sum it gets them back in one step. The tests compare
# output and gradients with attention written out in float64, at odd sizes, and count that no tile of the future is
# visited.

# %% mystnb={"image": {"alt": "Three tiles of two keys pass one query row; after each, the running maximum, sum and output are updated, and the end result equals the ordinary softmax"}}
lab.show_code(tiled_attention.visit_key_tiles, tiled_attention._TiledAttention)
SVG(flash_attention_tiling())

# %% [markdown]
# In PyTorch each line above is a kernel of its own that reads and writes memory: expect memory to be saved, and no time.
# In `speedlab.model.triton_attention` the same loops are three GPU kernels, whose tiles stay on the chip. It is the row
# *triton* below; it does nothing clever.
#
# ## Measured

# %%
lab.show_figure("attention_sweep", figures.attention_over_context)
lab.show_table(
    "attention_sweep",
    {"attention": "kind", "context": "context", "sequences": "batch", "ms forward": words.milliseconds("forward_ms"),
     "ms both": words.milliseconds("both_ms"), "MiB beyond inputs": words.mebibytes("extra_peak_bytes")},
    where={"what": "context"},
)
lab.show_words("attention_sweep", words.attention_words)

# %% [markdown]
# ## What ran
#
# Each SDPA row insists on one backend: an error would be a row. Three more questions to the same kernels.
# **`is_causal`**: half of the square is never needed; how much time does that give back? **Layout**: a projection
# leaves (B, T, H, D) in memory, SDPA talks of (B, H, T, D), and package flash-attn takes the former. A transposed view
# costs nothing, a copy does. **Fewer key heads**: with grouped queries
# ([Ainslie et al. 2023](https://arxiv.org/abs/2305.13245)) several heads share keys and values; one shared by all is
# multi-query attention ([Shazeer 2019](https://arxiv.org/abs/1911.02150)). The arithmetic stays, the keys and values
# that generation has to keep become fewer.

# %%
COMMON = {"attention": "kind", "ms forward": words.milliseconds("forward_ms"), "ms both": words.milliseconds("both_ms")}
lab.show_table("attention_sweep", {"context": "context", "causal": "causal", **COMMON}, where={"what": "causal"})
lab.show_table("attention_sweep", {"in memory": "layout", **COMMON}, where={"what": "layout"})
lab.show_table("attention_sweep", {"ms for three copies": words.milliseconds("copy_ms")}, where={"what": "copies"})
lab.show_table(
    "attention_sweep",
    {"key heads": "key_value_heads", "MiB of keys and values": words.mebibytes("key_value_bytes"),
     "repeated first": "repeated", **COMMON},
    where={"what": "heads"},
)

# %% [markdown]
# ## Same training?
#
# The function is the same; rounding is not. The first table gives the largest error against float64, from the same
# rounded inputs. In 16 bits the plain form errs as well: the format sets the error, not the algorithm. The second table
# repeats a call. Where several programs add into one gradient in whatever order they finish, the last bits change from
# run to run; deterministic mode forbids that, at a price. TF32 concerns float32 matmuls and has no say here.

# %%
lab.show_table(
    "attention_sweep",
    {"attention": "kind", "format": "dtype", "output": words.small("output_error"),
     "gradient of q": words.small("q_gradient_error"), "of k": words.small("k_gradient_error"),
     "of v": words.small("v_gradient_error")},
    where={"what": "accuracy"},
)
lab.show_table(
    "attention_sweep",
    {"attention": "kind", "setting": "setting", "ms both": words.milliseconds("both_ms"),
     "output repeats": "output_repeats", "gradients repeat": "gradients_repeat",
     "largest difference": words.small("largest_difference")},
    where={"what": "deterministic"},
)

# %% [markdown]
# ## On other cards
#
# * PyTorch's FlashAttention and cuDNN kernels need compute capability 8.0; the memory-efficient one also runs below.
# * The Triton kernels run wherever Triton compiles (7.0). Their tiles are small enough for the registers; none is tuned.
#
# What the versions of FlashAttention changed:
#
# * **1** ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)): tiles, online softmax and recomputation, with a count
#   of memory traffic that explains why.
# * **2** ([Dao 2023](https://arxiv.org/abs/2307.08691)): the loop over queries moves outside, so that long sequences
#   fill the card; fewer operations that are no matmul; warps share the queries and no longer exchange sums. PyTorch's
#   kernel is this one. The page of PyTorch above has its loop order.
# * **3** ([Shah et al. 2024](https://arxiv.org/abs/2407.08608)): written for Hopper: asynchronous copies and matmuls,
#   softmax of one tile under the matmul of another, and an 8-bit form.
#
# ## What we learned
#
# * *FlashAttention is approximate.* It is exact; only the order of additions differs.
# * *FlashAttention makes a 7B model three times as fast.* One block of that size, both ways:

# %%
lab.show_table("attention_sweep", {"a block of a 7B model": "kind", "context": "context", "width": "width",
                                   "ms both": words.milliseconds("both_ms")}, where={"what": "layer_7b"})  # fmt: skip
lab.show_words("attention_sweep", words.attention_words)

# %% [markdown]
# ## Try it yourself
#
# * No GPU: print `state.rescale` for each state of `visit_key_tiles` on scores that rise along the keys, and on scores
#   that fall. In which case is nothing ever rescaled?
# * No GPU: let `keys_in_sight` see a window of the last 16 keys alone. What has to change in `masked_scores`?
# * With a GPU: other tile sizes in `speedlab.model.triton_attention.tiles`. How far is it from cuDNN's kernel then?

# %%
lab.finish()
