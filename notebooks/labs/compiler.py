# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # torch.compile from the inside
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/compiler.ipynb)
#
# Chapter 8 adds one line and the step gets faster. What did the line do? This lab looks at what was fused, what stops
# the compiler, when it starts over, and what it costs before the first step.
#
# **Guess first:** does fusing make matmuls faster? You write `print` into a block to look at something. What does that
# do to a compiled model? And a batch of another size?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field, `compile`, on the recipe of rung *merged_qkv*, and on the same recipe with hand-written LayerNorm and GELU.
# Dropout is off, so that losses can be compared and timed on one and the same graph.

# %%
from speedlab.lab import Lab
from speedlab.labs import compiling
from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_compiler as words
from speedlab.training import step

lab = Lab("compiler", profile=profile, steps=steps, source=source)
lab.run("compile_modes")

# %% [markdown]
# ## Why it should be faster
#
# Outside matmuls and attention a step is a chain of small operations, each of which reads its input from memory and
# writes its output back. The compiler sees the chain as a whole and makes one kernel of it, which reads once and writes
# once. Counting tells how much there is to win before anything is timed: the bytes that each operator takes and gives,
# against those of the kernels that the compiler made. Both counts say nothing of caches, and both hold the matmuls.
# More bytes need not be more time: a pass that lets a matmul run fast may pay for itself.

# %%
lab.show_tables("compile_modes", words.counted)
lab.show_words("compile_modes", words.counted_words)

# %% [markdown]
# ## The change
#
# `dynamic=False`: one shape, one graph. Mode *reduce-overhead* records the kernels as CUDA graphs and replays them, so
# that the host launches once instead of hundreds of times. A replay writes into the same memory each time, so what must
# outlive the next step has to be copied; the loss of this package is computed outside the graph. *max-autotune* tries
# several kernels for each matmul, for minutes: it is a rung of ladder six-steps.

# %%
lab.show_code(step.compile_model, compiling.recipes_of)

# %% [markdown]
# ## Measured
#
# *ms in kernels* comes from a step that was profiled afterwards, and is no part of the timing. Where it is nearly the
# whole step, no launch is left to save. *GiB reserved* is what the process holds; CUDA graphs keep a pool of their own.

# %%
lab.show_figure("compile_modes", figures.break_even)
lab.show_tables("compile_modes", words.modes)
lab.show_words("compile_modes", words.warm_words)

# %% [markdown]
# ## What ran
#
# Kernels by kind, without and with the compiler. The names of generated kernels (*fused*) tell what each of them holds:
# `gelu_gelu_backward` computes the forward value once more instead of reading it. Do not stop at the
# fused ones: look at the matmuls, which no fusion can make faster.

# %%
lab.show_figure("compile_modes", figures.fused_kernels)
lab.show_tables("compile_modes", words.kernel_kinds)
lab.show_words("compile_modes", words.matmul_words)
lab.show_tables("compile_modes", words.longest_fused)

# %% [markdown]
# A **graph break** is a place that the compiler cannot follow. It compiles up to there, goes back to Python, and starts
# a new graph behind; nothing is fused across, and nothing says so. Here something is put behind the first block of a
# small model. What a break costs here is a wait: `print` breaks the graph as well, but `.item()` and the branch
# need a number from the card. A ratio is shown where it exceeds the spread by more than a hundredth, which is left to
# drift. *Slowest* is the worst step of the window: the median hides a compilation or a pause.

# %%
lab.show_code((compiling, "INTERRUPTIONS"), compiling.asks, compiling.branches)
lab.show_tables("compile_modes", words.breaks)
lab.show_tables("compile_modes", words.recompiles)

# %% [markdown]
# The last table calls one model, forward only, with four batch sizes. Fixed shapes compile each anew. With
# `dynamic=None` the second size makes a graph for any size, which serves the third; a batch of one is a case of its
# own. A graph for any size is another kernel than one for a fixed size, so a benchmark that changes its batch halfway
# does not measure what it says.
#
# ## Same training?
#
# The compiler keeps intermediate values in float32 where separate operations would have rounded them, so the losses are
# close and not equal.

# %%
lab.show_tables("compile_modes", words.losses)

# %% [markdown]
# ## On other cards
#
# Triton, which the compiler writes its kernels in, needs compute capability 7.0. On a CPU it writes C++ and needs a
# compiler; the toy of this lab leaves that to chapter 8. Matmul autotuning is only tried on cards with enough
# multiprocessors.
#
# ## What we learned
#
# * *torch.compile is a free lunch.* It is paid in advance, each time shapes or code change. The first step of a new
#   process shows how much of it a cache on disk gives back.
# * *What it gains is fusion.* With hand-written layers much of it is. With native ones, which PyTorch's authors fused
#   already, the gain is in matmuls that the compiler pads: look at both before you explain a speed-up.
# * Compare the kernel times of the two compiled rows, native and hand-written layers: what is left between them is what
#   the choice of layers still matters once there is a compiler.
#
# ## Try it yourself
#
# * No GPU: put `torch.cuda.synchronize()` or `x.tolist()` into an interruption of your own. Break or no break?
# * No GPU: `torch.compiler.set_stance("fail_on_recompile")` makes a recompile an error. Where would you put it?
# * With a GPU: `speedlab kernels torch_compile --trace FILE` and look for the gaps between kernels, with and without
#   *reduce-overhead*.

# %%
lab.finish()
