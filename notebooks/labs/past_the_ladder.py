# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Past the ladder
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/past_the_ladder.ipynb)
#
# The ten chapters end with a compiled step in 16 bits. There are projects that leave PyTorch and write every kernel in
# CUDA, llm.c the best known of them. Is that what it takes to be faster, or is it traffic that somebody has to remove,
# in whatever language? This page climbs on, one field at a time, and keeps what failed.
#
# **Guess first:** a step of GPT-2 124M on 65,536 tokens needs 56 TFLOP by formula, and an H200's data sheet promises
# 989 of them a second in 16 bits. Real matmuls of this width reach less. What else does the step spend
# time on, and how much?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# The start is what a careful user of PyTorch has: autocast, `torch.compile` over model and loss, fused AdamW, padded
# vocabulary, 65,536 tokens in each update. It is configured as the programs that it is compared with: tied head, no
# dropout, context 1,024. All biases are there, as in GPT-2 and llm.c; nanoGPT's benchmark leaves them out, which is
# less work. Each rung then changes one field of the recipe.

# %%
from IPython.display import Markdown

from speedlab import beyond, presets
from speedlab.fused import cross_entropy, gelu, residual_norm
from speedlab.lab import Lab
from speedlab.labs import beyond as candidates
from speedlab.labs import beyond_predictions
from speedlab.publishing import beyond_tables as tables
from speedlab.publishing import beyond_words as words
from speedlab.publishing.figure_of_beyond import parts_of_steps

lab = Lab("past_the_ladder", profile=profile, steps=steps, source=source)
lab.show_code((beyond, "PLAIN_COMPILED"), (beyond, "BEYOND"))

# %% [markdown]
# ## Why it should be faster
#
# Count passes. One *unit* is a tensor of 65,536 tokens x 768 values x 2 bytes, 101 MB. A pass over it, read or written,
# takes 26 microseconds at 3.8 TB/s, a bandwidth that one can hope for on an H200.
#
# * *Norms and residuals.* Forward, a layer reads the stream and what is added to it, and writes the sum and its norm: 4
#   units, twice. Backward again 4, twice. With 12 layers and the last norm that is 200 units, 5.3 ms.
# * *GELU* works on tensors four times as wide: 8 units forward, 12 backward, 240 in all, 6.4 ms.
# * *Bias gradients* are sums over all tokens. As passes of their own they read 1 + 4 + 1 + 3 units a layer, 2.9 ms for
#   numbers that nobody notices. A kernel that writes a gradient can add up its columns on the way, for nothing.
# * *The loss.* The logits are the largest tensor of the step, 6.6 GB. Read once and written once, that is 3.5 ms.
#
# Add the matmuls, attention and the optimizer, and the sum is near 105 ms. What a compiler generates takes longer,
# because it may not change what a kernel returns: it cannot put the gradient where the logits were, and it sums
# columns after the fact. The predictions below were written down before the first run of this ladder.

# %%
lab.show_code(beyond_predictions.Prediction, (beyond_predictions, "PREDICTIONS"))

# %% [markdown]
# ## The change
#
# Five kernels, each a function with a plain form that runs anywhere and a form in Triton. Here are the plain ones: what
# is computed, and what falls out on the way. The cross-entropy knows its factor, one over the number of tokens, before
# it sees a gradient; so its forward pass is its backward pass.

# %%
lab.show_code(cross_entropy.InPlaceCrossEntropy, gelu.gradients, residual_norm.gradients)

# %% [markdown]
# ## Measured
#
# The goal was set before the first run: 600,000 tokens a second on one H200, where llm.c is the fastest that we know of,
# and 0.65 of the machine's own measured rate of matmuls in nominal FLOPs, which is about the same for any machine. No
# more memory than the plain compiled recipe, and mathematics no worse than autocast. Then the ladder, rung by rung, and
# the lab book: what each rung was predicted to save, and what it saved. Rows that later rungs do not keep stand at the
# end. A prediction that was wrong stays wrong.

# %%
lab.run("beyond_kernels")
lab.show_words("beyond_kernels", tables.goal_words)
Markdown(words.ladder_section())

# %% [markdown]
# ## What ran
#
# First whole steps, their kernels gathered by the part of the step that they belong to, before and after. Then each
# part alone, in its quickest form: what a part takes alone is what it could take in the step.

# %%
for experiment in ("beyond_parts", "beyond_quick"):
    lab.run(experiment)
lab.show_words("beyond_kernels", tables.parts_sentence)
lab.show_figure("beyond_kernels", parts_of_steps)
lab.show_tables("beyond_kernels", tables.parts_tables)
lab.show_tables("beyond_parts", tables.budget_tables)
lab.show_table(
    "beyond_quick",
    {"candidate": "candidate", "ms": words.step_ms, "tokens/s": words.rate, "GiB reserved": words.gib},
)

# %% [markdown]
# ## Same training?
#
# The kernels round where the compiler's code does, or less often. The residual stream is where it is not the same:
# autocast keeps it in float32, here it has 16 bits like everything but masters and moments. So the contract is a loss
# curve. Both sides start from the same weights and read the same text, two seeds each; another seed means other
# weights and another order of the text. The distance between two seeds of one side is the noise to beat.

# %%
lab.run("beyond_curves")
lab.show_words("beyond_curves", words.curve_words)

# %% [markdown]
# ## On other cards
#
# The fastest recipe has a name. On a card with less memory it takes smaller micro-batches and accumulates, so that an
# update sees as many tokens; on a card without units for bfloat16 it takes float16 with a scaler, and gives up what
# does not go with a scaler. A larger model shifts the balance towards the matmuls. Compilation has to be paid back.

# %%
lab.show_code((presets, "PRESETS"), (candidates, "SIZES"))
lab.run("beyond_sizes")
lab.show_table(
    "beyond_sizes",
    {"size": "size", "preset": "preset", "ms": words.step_ms, "tokens/s": words.rate, "GiB reserved": words.gib,
     "compile, s": "compile_s"},
)
lab.show_words("beyond_sizes", words.break_even_words)

# %% [markdown]
# ## What we learned
#
# * *The compiler fuses everything, so nothing is left.* It fuses what stands side by side. A sum over all tokens beside
#   a map over all values, or an output in the place of an input, is another kernel or another tensor.
# * *A library's kernel is free speed.* Liger's cross-entropy moves the same bytes as ours. It also counts and checks
#   the targets on the host, which waits for the card, and returns the loss with the three digits of bfloat16. Read a
#   kernel before you take it.
# * *8 bits double the speed.* Of the matmuls that they reach, less what it costs to scale and to round. In this ladder
#   they reach one matmul forward, and its row stands apart, because the mathematics is another.

# %% [markdown]
# ## Try it yourself
#
# * No GPU: how many units does a LayerNorm move if its output is not written but computed again in the backward pass?
#   When would that be faster?
# * No GPU: `preset_for("fastest", Capabilities(device_type="cuda", capability=(7, 5), gpu_memory_bytes=15 * 2**30))`
#   from `speedlab.presets` and `speedlab.device`. Which fields change, and for what reasons?
# * With a GPU: `speedlab ladder --ladder beyond --rungs plain_compiled,one_pass_adamw`. Which rung pays most on your
#   card? Compare with the lab book before you look for a reason.

# %%
lab.finish()
