# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Number formats from the inside
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/precision.ipynb)
#
# Sixteen bits can be spent in more than one way. Chapter 5 changes the format and looks at the speed; this lab looks at
# the numbers. What of a real training step fits into a format, and what is lost without a word?
#
# **Guess first:** the loss is a mean over thousands of tokens. How small is the gradient of one logit then, and can
# float16 hold it? And a weight of 1.0 in bfloat16: how large must an update be before the weight moves at all?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Nothing in the training: a model trains in float32, and its own gradients and updates are rounded afterwards, so that
# all formats see the same numbers. Then three trainings, in float32, in pure bfloat16 and in bfloat16 with float32
# master weights, are watched at one weight.

# %%
from IPython.display import SVG, Markdown

from speedlab.lab import Lab
from speedlab.number_formats import FORMATS, bit_pattern, round_to, step_at
from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_precision as words
from speedlab.publishing.diagrams import number_formats
from speedlab.publishing.display import show_svg

lab = Lab("precision", profile=profile, steps=steps, source=source)
lab.run("precision_formats")

# %% [markdown]
# ## Why it should be faster
#
# Fewer bits are fewer bytes to move, and Tensor Cores multiply short numbers faster. The exponent bits of a format set
# its range, the fraction bits its steps. bfloat16 keeps float32's exponent and gives up fraction bits; float16 does the
# opposite; TF32 is what the Tensor Cores make of float32: bfloat16's range with float16's steps. The two 8-bit formats
# go further the same way: e4m3 for values, e5m2 for gradients
# ([Micikevicius et al. 2022](https://arxiv.org/abs/2209.05433)). This package trains in none of the two.

# %% mystnb={"image": {"alt": "Rows of bits for float32, TF32, bfloat16 and float16, coloured by sign, exponent and fraction, each with its largest value and its step at one"}}
lab.show_words("precision_formats", words.matmul_rates)
SVG(number_formats())

# %% [markdown]
# ## The change
#
# One rule rounds into every format: find the distance between neighbours where the value lies, and go to the nearest
# multiple of it. Near the bottom of the range that distance stops shrinking: those numbers are *subnormal* and lose
# their bits one by one, until nothing is left. The tests hold this function against PyTorch's casts, value by value.

# %%
lab.show_code(round_to, step_at)
for name in ("bfloat16", "float16"):
    print(f"{name:9}", *(f"{x:g} -> {round_to(x, FORMATS[name]):g}" for x in (1.0005, 3e-6, 2e-8, 70_000.0)), sep="   ")
print("1 in bfloat16 is", bit_pattern(1.0, FORMATS["bfloat16"]))
Markdown(words.formats_table())

# %% [markdown]
# ## Measured
#
# *Weights*: the gradients that the optimizer sees. *Activations*: those that flow between blocks. *Logits*: the first
# ones, where the mean over all tokens has just divided by their number. The shaded band is where float16 has subnormal
# numbers only; left of it there is nothing. A **loss scale** multiplies the loss before the backward pass, which shifts
# the whole picture to the right, and divides the gradients afterwards
# ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)). The share *above largest* has to stay at none: there
# the scale is too large. Shares are of those gradients that are not zero in float32.

# %%
lab.show_figure("precision_formats", figures.gradient_histogram)
lab.show_tables("precision_formats", words.in_float16)
lab.show_words("precision_formats", words.gradients_lost)
lab.show_tables("precision_formats", words.in_eight_bits)

# %% [markdown]
# ## What ran
#
# AdamW divides the mean of the gradients by their size, so its first step is as large as the learning rate, 5e-4,
# whatever the gradient was. Later steps are smaller, where gradients change their sign or have shrunk. A weight takes
# no notice of an update below half the distance to its neighbour. For bfloat16 that distance is a 128th to a 256th of
# the weight. A norm's weights start at exactly 1: the first panel shows one. The master copy collects what is too small
# for the weight, until it counts.

# %%
lab.show_figure("precision_formats", figures.weight_trajectories)
lab.show_words("precision_formats", words.weights_watched)
lab.show_tables("precision_formats", words.updates)

# %% [markdown]
# ## Same training?
#
# That is the question of ladder `precisions`: the same model and text in float32, pure bfloat16, with masters, under
# autocast, and in float16 with a scaler. All curves start from the same weights and read the same text with dropout
# off. Beside each of them float32 is trained once more, so that it says by itself how much such a curve is worth.
#
# That spread is a lower bound. Repeats of one program begin alike; another format rounds the first step already and
# goes its own way from there, as another seed would. One run of each cannot tell such a way from a better or worse
# format: neither a curve below float32 nor a few hundredths above it decide anything. What pure bfloat16 loses has a
# mechanism of its own, in the table above.

# %%
for records in words.ladder_records():
    show_svg(figures.precision_gaps(records))
Markdown(words.ladder_table())

# %% [markdown]
# ## On other cards
#
# * bfloat16 and TF32 need compute capability 8.0. A T4 (7.5) has Tensor Cores for float16 alone, so it needs the loss
#   scale of this page; `speedlab doctor` says what yours has.
# * 8-bit Tensor Cores begin with capability 8.9.
# * Below 8.0 PyTorch *emulates* bfloat16 and reports it as supported. The rungs look at the capability instead.
#
# ## What we learned
#
# * *bfloat16 has float32's range, so it needs no care.* Its gradients lost nothing to the ends of the range. Its weights
#   need care: range is not precision.
# * *float16 is obsolete.* It has eight times bfloat16's resolution; what it lacks is range, which the scale moves about.
# * A format is a choice for each kind of tensor. Matmul inputs, gradients, weights and optimizer state have different
#   needs, and mixed precision is the answer that treats them differently. In 8 bits one loss scale for all is not
#   enough: the scale that lifts the weights' gradients over e4m3's largest number leaves those of the logits at zero.
#
# ## Try it yourself
#
# * No GPU: `round_to(1 + 5e-4, FORMATS["bfloat16"])`. From which weight downwards does an update of the learning rate
#   count? Compare with `speedlab.folklore.formulas.lost_above(5e-4)`.
# * No GPU: change `LOSS_SCALE` in `speedlab.labs.precision` to 2**30 and run the lab. Which column moves now?
# * With a GPU: stochastic rounding rounds up with the probability of what is cut off, so small updates survive on
#   average. Write it for one tensor and let the weight of 1 run a thousand steps.

# %%
lab.finish()
