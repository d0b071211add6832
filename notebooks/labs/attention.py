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
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/attention.ipynb)
#
# Chapter 7 replaces one call by another and the square of scores is gone. Here is what happens inside: the algorithm as
# a page of PyTorch, the same as a GPU kernel, and all the kernels that others wrote, over contexts of 256 to 16,384.
#
# **Guess first:** twelve heads of width 64, the same number of tokens in ever longer sequences. Which of time and
# memory grows for plain attention, and which for a tiled kernel? Would a twelfth of the keys make it faster?

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
from speedlab.publishing import words_of_attention as words
from speedlab.publishing import words_of_attention_traffic as traffic
from speedlab.publishing.diagrams import flash_attention_tiling

lab = Lab("attention", profile=profile, steps=steps, source=source)
lab.run("attention_sweep")
lab.run("attention_traffic")

# %% [markdown]
# ## Why it should be faster
#
# By arithmetic it should not: a tiled kernel computes the scores twice, once in each pass. But plain attention writes
# them to memory and reads them back several times. The forward pass of one GPT-2 layer, batch 8: counted by formula,
# and read from the card's own counters by Nsight Compute where this is allowed. The formula of the tiled kernel is an
# upper bound: it counts keys and values again for each tile of 128 queries, as if there were no cache.

# %%
lab.show_tables("attention_traffic", traffic.traffic)
lab.show_tables("attention_traffic", traffic.plain_kernels)
lab.show_words("attention_traffic", traffic.traffic_words)

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
# In PyTorch each line above is a kernel of its own that reads and writes memory: expect memory to be saved where
# sequences are longer than a few tiles, and no time. In `speedlab.model.triton_attention` the same loops are three GPU
# kernels, whose tiles stay on the chip; they do nothing clever. Rows of the tables: *plain* and *tiled* are this
# package's PyTorch code, *plain_compiled* is the first under `torch.compile`, *triton* the kernels just named; *sdpa*
# is PyTorch's `scaled_dot_product_attention` by its own choice, *sdpa_flash*, *sdpa_cudnn*, *sdpa_efficient* and
# *sdpa_math* the same where one backend is insisted on; *flex* is PyTorch's compiled `flex_attention`, *flash_attn* the
# package by the algorithm's authors.
#
# ## Measured

# %%
lab.show_figure("attention_sweep", figures.attention_over_context)
lab.show_tables("attention_sweep", words.over_context)
lab.show_words("attention_sweep", words.against_plain)

# %% [markdown]
# ## What ran
#
# Which kernel *sdpa* is, it does not say; time and memory do. Then three more questions to the same kernels.
# **`is_causal`**: half of the square is never needed; how much time does that give back? **Layout**: a projection
# leaves (B, T, H, D) in memory, SDPA talks of (B, H, T, D), and package flash-attn takes the former. A transposed view
# moves nothing, a copy does. **Fewer key heads**: with grouped queries
# ([Ainslie et al. 2023](https://arxiv.org/abs/2305.13245)) several heads share keys and values; one shared by all is
# multi-query attention ([Shazeer 2019](https://arxiv.org/abs/1911.02150)). The arithmetic stays; the keys and values
# that generation has to keep become fewer.

# %%
lab.show_words("attention_sweep", words.chosen_backend)
lab.show_tables("attention_sweep", words.causal)
lab.show_tables("attention_sweep", words.layouts)
lab.show_words("attention_sweep", words.layout_words)
lab.show_tables("attention_sweep", words.heads)
lab.show_words("attention_sweep", words.head_words)

# %% [markdown]
# ## Same training?
#
# The function is the same; rounding is not. The first table gives the largest error against float64, from the same
# rounded inputs. In 16 bits the plain form errs as well: the format sets the error, not the algorithm. The second table
# repeats a call. Where several programs add into one gradient in whatever order they finish, the last bits change from
# run to run; deterministic mode forbids that, at a price. (Even a kernel that repeats anyway takes a little longer in
# it: PyTorch then fills fresh memory as well.) TF32 concerns float32 matmuls and has no say here.

# %%
lab.show_tables("attention_sweep", words.accuracy)
lab.show_tables("attention_sweep", words.determinism)

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
# * *FlashAttention is approximate.* It computes the same function; only the order of additions differs, and with it
#   the rounding.
# * *SDPA is FlashAttention.* It is a choice among kernels, and the choice depends on the card and on PyTorch.
# * *FlashAttention makes a 7B model three times as fast.* One block of that size, both ways:

# %%
lab.show_words("attention_sweep", words.block_of_7b)

# %% [markdown]
# ## Try it yourself
#
# * No GPU: print `state.rescale` for each state of `visit_key_tiles` on scores that rise along the keys, and on scores
#   that fall. In which case is nothing ever rescaled?
# * No GPU: let `keys_in_sight` see a window of the last 16 keys alone. What has to change in `masked_scores`?
# * With a GPU: other tile sizes in `speedlab.model.triton_attention.tiles`. How far is it from cuDNN's kernel then?

# %%
lab.finish()
