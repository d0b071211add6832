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
from speedlab.publishing import words_of_labs_inside as words
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

# %%
lab.show_table(
    "compile_modes",
    {"layers": "recipe", "compile": "mode", "MiB of the model's passes": words.mebibytes("bytes"),
     "operators": "operators", "graphs": "graphs"},
    where={"what": "bytes"},
)

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

# %%
lab.show_figure("compile_modes", figures.break_even)
lab.show_table(
    "compile_modes",
    {"layers": "recipe", "compile": "mode", "ms/step": words.milliseconds("step_ms"),
     "s to compile": words.seconds("compile_s"), "cache": "compile_cache", "recompiles": "recompiles",
     "MiB held": words.mebibytes("peak_allocated_bytes")},
    where={"what": "mode"},
)
lab.show_table(
    "compile_modes",
    {"a new process with the cache": "recipe", "s of its first step": words.seconds("first_step_s"),
     "cache": "compile_cache"},
    where={"what": "warm"},
)
lab.show_words("compile_modes", words.compile_words)

# %% [markdown]
# ## What ran
#
# Kernels by kind, without and with the compiler. Their names tell what was fused: `triton_per_fused_native_layer_norm`
# and what follows it were operations of their own before.

# %%
lab.show_figure("compile_modes", figures.fused_kernels)
lab.show_words("compile_modes", words.fused_words)

# %% [markdown]
# A **graph break** is a place that the compiler cannot follow. It compiles up to there, goes back to Python, and starts
# a new graph behind; nothing is fused across, and nothing says so. Here something is put behind the first block of a
# small model. *Operations* are those that any graph holds: what is missing runs uncompiled.

# %%
lab.show_code((compiling, "INTERRUPTIONS"), compiling.asks, compiling.branches)
lab.show_table(
    "compile_modes",
    {"behind the first block": "interruption", "graphs": "graphs", "operations": "operations",
     "ms/step": words.milliseconds("step_ms"), "because": words.listed("reasons")},
    where={"what": "graph_break"},
)
lab.show_table(
    "compile_modes",
    {"dynamic": "dynamic", "batches": words.listed("batches"), "graphs after each": words.listed("graphs"),
     "s of each call": words.listed("call_s", lambda value: f"{value:.2f}")},
    where={"what": "recompile"},
)

# %% [markdown]
# The last table calls one model with four batch sizes. Fixed shapes compile each anew. With `dynamic=None` the second
# size makes a graph for any size, which serves the third; a batch of one is a case of its own. A graph for any size is
# another kernel than one for a fixed size, so a benchmark that changes its batch halfway does not measure what it says.
#
# ## Same training?
#
# The first and last losses of each mode, in nats, from the same weights on the same batches. The compiler keeps
# intermediate values in float32 where separate operations would have rounded them, so the last digits differ.

# %%
LOSSES = {"first": lambda row: f"{row['losses'][0]:.5f}", "last": lambda row: f"{row['losses'][-1]:.5f}"}
lab.show_table("compile_modes", {"layers": "recipe", "compile": "mode", **LOSSES}, where={"what": "mode"})

# %% [markdown]
# ## On other cards
#
# Triton, which the compiler writes its kernels in, needs compute capability 7.0. On a CPU it writes C++ and needs a
# compiler; the toy of this lab leaves that to chapter 8. Matmul autotuning is only tried on cards with enough
# multiprocessors.
#
# ## What we learned
#
# * *torch.compile is a free lunch.* It is paid in advance, each time shapes or code change. The row of the new process
#   says how much of it a cache on disk gives back.
# * *It makes everything faster.* Look at the matmuls in the figure: fusing is about all the rest.
# * Compare the two compiled rows, native and hand-written layers: what is left between them is what the choice of
#   layers still matters once there is a compiler.
#
# ## Try it yourself
#
# * No GPU: put `torch.cuda.synchronize()` or `x.tolist()` into an interruption of your own. Break or no break?
# * No GPU: `torch.compiler.set_stance("fail_on_recompile")` makes a recompile an error. Where would you put it?
# * With a GPU: `speedlab kernels torch_compile --trace FILE` and look for the gaps between kernels, with and without
#   *reduce-overhead*.

# %%
lab.finish()
