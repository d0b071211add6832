# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # torch.compile
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/08_torch_compile.ipynb)
#
# So far we replaced slow pieces by hand: a fused optimizer, a fused LayerNorm, a fused attention. What is left are
# many small operations between the matmuls. Can a compiler find and fuse them, and what does it ask for in return?
#
# **Guess first:** which of these can it make shorter: matmuls, attention, the residual additions, the loss, the
# optimizer? And after how many steps have you earned the compilation back?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field. The model is the one of chapter 7, and none of its lines is edited.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("08_torch_compile", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# ## Why it should be faster
#
# Without a compiler PyTorch runs one operation after the other. Each reads its inputs from memory, does little with
# them and writes the result back. Between two matmuls of a block stand dropout, the residual addition and the next
# LayerNorm. Count passes over one tensor of 8 x 1,024 tokens x 768 numbers in bfloat16, which is 12 MiB:
#
# ```text
# dropout     reads 1, writes 1, and half a pass for its mask    2.5
# addition    reads 2, writes 1                                  3
# LayerNorm   reads 1, writes 1                                  2
# one kernel  reads 2, writes the sum and the normalized sum     4, and the mask if kept
# ```
#
# `torch.compile` records the operations of the forward pass as a graph, derives that of the backward pass, and
# generates kernels for runs of operations that can share a pass: Triton on a GPU, C++ on a CPU. It also decides which
# values to keep for the backward pass and which to compute again. In the default mode matmuls and attention remain
# calls into the libraries, so fusion alone should not touch them.
#
# One matmul is an exception, and the prediction below counts on it: the head. Its 50,257 columns suit the hardware
# badly, and the compiler may pad them by itself. *What ran* comes back to this.
#
# The picture has the stages. Each has a name that turns up in messages and logs, so it pays to have seen them.

# %% mystnb={"image": {"alt": "Five boxes from Python code through graph capture, backward graph and code generation to kernels; later calls check guards and reuse them"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import compile_pipeline

display(SVG(compile_pipeline()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# `dynamic=False` compiles for exactly the shapes that it meets. Another batch size means another graph and another
# wait. The alternative is one graph for all sizes, which cannot be the best one for each. Training uses one shape, so
# the wait comes once. Only the model is compiled; loss and optimizer step stay outside.

# %%
from speedlab.training.step import compile_model

chapter.show_code(compile_model)

# %% [markdown]
# ## Measured
#
# Compilation happens in the first step, forward and backward, and is not in the timed window. If something is compiled
# again inside the window, the row says so.

# %%
chapter.measure()

# %% [markdown]
# The compile time is a number of its own: the length of the first step minus that of a median step. A *cold* cache
# means that kernels had to be generated; a *warm* one holds them from an earlier run. Break-even comes from three
# columns:
#
# ```text
# steps to break even = 1,000 x compile seconds / (ms per step before - ms per step after)
# ```

# %%
chapter.show_break_even()

# %% [markdown]
# ## What ran
#
# Generated kernels are the kind *fused*. On a GPU their long names list the operations that they hold; on a CPU one
# entry stands for a whole graph. A kind that shrinks or vanishes went into them. Two things to look for:
#
# * Does the time of the *matmuls* fall as well? Fusion cannot do that. But the compiler may pad a matmul whose row
#   length suits the hardware badly, if that wins in its own trial. The head, with 50,257 columns, is a candidate. If
#   it was padded here, part of the next chapter's gain is already in this row.
# * *softmax and loss* and *optimizer* should stand as before, because they lie outside the graph.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# A fused kernel keeps intermediate values in float32 registers where separate ones rounded each to bfloat16. So the
# losses need not be equal, only close.

# %%
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# Triton needs compute capability 7.0. On a CPU a C++ compiler must be installed. Where either is missing the row says
# so and the run goes on.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Four sentences that go around, and where to look:
#
# * *A free lunch.* It costs the compile time above. A run that is shorter than the break-even step loses time.
# * *The first run is 2 to 10 times slower.* Divide the compile time by a median step. The published account of six
#   steps gives about 40 s of compilation (mode `max-autotune`) in front of steps of 0.33 s, a factor of 120.
# * *It preallocates all memory.* Compare the reserved memory of the two rows with the size of the card. In the
#   published ladder (LLMs-from-scratch) it went from 5.90 to 6.19 GiB.
# * *Looking at a later step avoids the warm-up.* From this rung on that ladder reads the last printed interval, where
#   it read a running mean before. But its intervals also hold evaluations, which are neither warm-up nor training. It
#   is not enough to leave the first step out: a window must hold training only.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * No GPU: run this chapter twice in Jupyter with the variable `TORCHINDUCTOR_CACHE_DIR` set to the same folder. What
#   becomes of the compile time, and of the word behind it?
# * No GPU: set `TORCH_LOGS=output_code` and find the kernel that holds a residual addition. What else is in it?

# %%
chapter.finish()
