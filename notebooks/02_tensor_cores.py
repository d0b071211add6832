# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tensor Cores through TF32
#
# [Open this chapter in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/02_tensor_cores.ipynb)
#
# Since 2020 NVIDIA's cards have units that multiply small matrices of float32 numbers in one instruction, on one
# condition: each number that goes in loses 13 of its 23 fraction bits first. PyTorch leaves these units unused until
# it is told that the loss is acceptable. How much of a training step can they take over, and does the training notice?
#
# **Guess first:** which parts of the step stay exactly as slow as they were? And does the memory use go down when
# numbers get shorter?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# One field. The weights, the activations and the optimizer stay float32.

# %%
from speedlab.notebook import Chapter

chapter = Chapter("02_tensor_cores", profile=profile, steps=steps, source=source)
chapter.show_change()

# %% [markdown]
# TF32 is a format for the inside of a matrix product. Sign and exponent are those of float32, so the range is the same
# and nothing overflows that did not before. Of the fraction only 10 bits remain. A TF32 number still occupies 32 bits
# in memory; it is shortened on its way into the multiplier.

# %% mystnb={"image": {"alt": "Rows of bits for float32, TF32, bfloat16 and float16, coloured by sign, exponent and fraction, each with its largest value and its step at one"}, "figure": {"caption": "Four number formats. TF32 has the range of float32 and the precision of float16.", "name": "fig-number-formats"}}
from IPython.display import SVG, display

from speedlab.publishing.diagrams import number_formats, tensor_core_tile, tf32_rounding

SVG(number_formats())

# %% [markdown]
# ## Why it should be faster
#
# An ordinary instruction gives each of the 32 threads of a warp one multiply-add. A Tensor Core instruction takes two
# small matrices from the whole warp and adds their product to a third one.
#
# NVIDIA's data sheets and architecture papers turn that into peak rates, dense, in TFLOP/s:
#
# | card | float32 | TF32 | bfloat16, float16 |
# |---|---:|---:|---:|
# | A100 | 19.5 | 156 | 312 |
# | H200 SXM | 66.9 | 494.7 | 989.5 |
# | RTX 3090 | 35.6 | 35.6 | 71 |
# | T4 | 8.1 | none | 65 (float16 only) |
#
# TF32 has half the rate of the 16-bit formats: its inputs are twice as wide, so an instruction holds half as many. And
# for the RTX 3090 the paper promises nothing, since its ordinary units have the same peak.
#
# A step is more than matrix products. If these run `r` times as fast and everything else is as before:
#
# ```text
# step after = matmul time / r + rest
# ```
#
# The rest is softmax, dropout, LayerNorm, GELU, loss and optimizer, all limited by memory traffic. TF32 does not touch
# them, since the numbers in memory keep their 4 bytes. For the same reason the peak memory should not move.

# %% mystnb={"image": {"alt": "A tile of matrix A times a tile of matrix B is added to a tile of C by one instruction; bars compare its multiply-adds with those of an ordinary instruction"}}
display(SVG(tensor_core_tile()))
chapter.show_prediction()

# %% [markdown]
# ## The change
#
# `torch.set_float32_matmul_precision` is a switch for the whole process. The package throws it around a step and puts
# it back afterwards, otherwise the next variant would silently inherit it. `"highest"`, PyTorch's default, means full
# float32; `"high"` permits TF32.

# %%
from speedlab.training.precision import matmul_precision

chapter.show_code(matmul_precision)

# %% [markdown]
# ## Measured
#
# The column *of ceiling* compares with the matmul rate that the same session measured for the format in use. That
# ceiling is higher for TF32 than for float32, so the share can fall while the speed rises.

# %%
chapter.measure()

# %% [markdown]
# ## What ran
#
# The switch is a permission: it raises no error on a card without such units. Only the kernels tell. cuBLAS usually
# writes the instruction into the name of a kernel (`tf32`, `s1688`, `gmma`), and the ordinary ones are called `sgemm`
# or `simt`. The kinds below go by these names.

# %%
chapter.show_kernels()

# %% [markdown]
# ## Same training?
#
# Rounding to 10 fraction bits moves a number by at most one part in 2,048. The product of two such numbers fits into
# float32 without a further loss, and the sums are kept in float32. The errors of the many terms of a sum differ in
# sign and partly cancel. The losses need not be equal bit for bit, so the promise is a tolerance. The picture follows
# one number, 0.1, from memory to memory.

# %% mystnb={"image": {"alt": "The bits of one float32 number; on the way into the multiplier its last 13 fraction bits are dropped, products and sums keep float32"}}
display(SVG(tf32_rounding()))
chapter.show_contract()

# %% [markdown]
# ## On other cards
#
# TF32 came with compute capability 8.0 (Ampere). Volta (7.0) and Turing (7.5, the T4) do have Tensor Cores, but for
# float16 only. There this chapter has nothing to switch on, and the way to the Tensor Cores leads through float16, in
# chapter 5.

# %%
chapter.show_other_cards()

# %% [markdown]
# ## What we learned
#
# Four sentences that go around, and where to look:
#
# * *"From capability 7.0 on, `"high"` is enough."* The table of cards above follows the hardware: TF32 from 8.0.
# * *"The T4 has no Tensor Cores."* It has, and its data sheet gives them 65 TFLOP/s; they take no float32 in any form.
# * *"TF32 is nearly as fast as float16."* The sheets say half. Chapter 5 goes from one to the other, so its *Measured*
#   table has the rest of the answer.
# * *"float32 matmuls use Tensor Cores to some extent anyway."* The sentence for the step before the change, under
#   *What ran*, says which share of its matmul time was spent there.

# %%
chapter.show_lesson()

# %% [markdown]
# ## Try it yourself
#
# * Make TF32 by hand, no GPU needed: view a float32 tensor as `torch.int32`, add `0x1000`, clear the lowest 13 bits
#   with `& ~0x1FFF`, and view it as float32 again. Multiply two random 512 x 512 matrices with and without this and
#   compare both with the product in float64. How does the largest error grow with the size?
# * Take the matmul share of the step before the change from the kernel table and put it into the formula above with
#   the `r` of your card's data sheet. How close does the measured step come?

# %%
chapter.finish()
