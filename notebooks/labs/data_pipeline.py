# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Feeding the GPU
#
# [Open this lab in Colab](https://colab.research.google.com/github/gpt2-speedlab/gpt2-speedlab/blob/main/notebooks/colab/data_pipeline.ipynb)
#
# A batch of token ids is small, and still every guide tells you to pin memory, to start workers and to prefetch. When
# does a GPU really wait for its data, and how would you see it?
#
# **Guess first:** a step takes 20 ms on the GPU, and the loader needs 10 ms for each batch, in the same process. By how
# much does the step grow? By 10 ms? And if the loader needs 30 ms and four processes load?

# %% tags=["parameters"]
profile: str = "auto"  # full, t4, smoke, or auto: by this machine's GPU
steps: int = 0  # timed steps per variant, 0 for the profile's own number
source: str = "auto"  # measure here, show the recorded numbers only, or auto

# %% [markdown]
# ## What changes
#
# Nothing in the model. One step, that of rung *padded_vocab*, the shortest of the ladder, is compiled once and then fed
# in different ways: where the ids come from, how many processes load, how a batch is carried, how many wait ready, and
# how slow the loader is.

# %%
from speedlab.data import double_buffer, shaping, stream
from speedlab.lab import Lab
from speedlab.labs import data_feeds
from speedlab.labs import data_pipeline as experiment
from speedlab.measuring import starvation
from speedlab.publishing import figures_of_labs_data as figures
from speedlab.publishing import tables_of_labs_data as tables
from speedlab.publishing import words_of_labs_data as words

lab = Lab("data_pipeline", profile=profile, steps=steps, source=source)
lab.run("data_pipeline")

# %% [markdown]
# ## Why it should be faster
#
# The host only *queues* the work of a step; the GPU is busy long after the call has returned. Until then the host may
# load. So without any worker a step takes what the GPU needs, or what the host needs to load and then to queue,
# whichever is longer. Only the second case is starvation. With `W` processes that load ahead, a batch arrives every
# `delay / W`, and the step is the longer of that and the GPU's own time. On a CPU there is nobody else who works
# meanwhile, and the two add up.
#
# What a loader does *once in a while* is another matter: a shuffle buffer that is filled again, a file that is opened.
# On the average it is fast enough; batches that wait ready have to bridge the gap.

# %%
lab.show_code(experiment.predicted_step_ms, experiment.predicted_with_hiccups_ms)

# %% [markdown]
# ## The change
#
# **A copy that the host does not wait for** needs page-locked ("pinned") memory. From ordinary memory the driver copies
# through a buffer of its own, and the host stands there until all work queued before is done and the copy with it.
#
# **A double buffer** copies the next batch in a stream of its own, while the present one is in use. Two mistakes are
# easily made and seldom seen: writing into the device's side while a kernel still reads it, and into the host's side
# while the copy still runs. Both give wrong batches without an error. Two events guard them. A test runs the queues of
# both streams in every order that is allowed, and fails if either event is taken away.

# %%
lab.show_code((stream, "HOST_MEMORY"), double_buffer.CudaCopies, data_feeds.mapped)

# %% [markdown]
# **A memory-mapped token file** is tokenised once (`speedlab tokenize TEXT --out tokens.bin`) and read in place: pages
# come from the disk when a window needs them, and the system takes them back when memory is short. A test reads a file
# of hundreds of MiB at random and bounds what the process keeps for itself.
#
# ## Measured
#
# Starvation is seen on the clock of the device: one mark in its stream when the batch is asked for, which is reached
# when the work before is done, and one when the batch is there. What lies between is the time in which it had nothing
# to do. Nothing waits for the device meanwhile, for that alone would change what is measured.

# %%
lab.show_code(starvation.MarkedBatches)
lab.show_words("data_pipeline", words.pipeline_words)
lab.show_tables("data_pipeline", tables.pipeline_table)

# %% [markdown]
# Now the loader is slowed on purpose. The dashed lines were drawn before: they are the prediction from above.

# %%
lab.show_words("data_pipeline", words.knee_words)
lab.show_figure("data_pipeline", figures.knee)
lab.show_tables("data_pipeline", tables.slow_table)

# %% [markdown]
# And text of many lengths. A batch needs one shape, so that texts are padded, or joined end to end and cut. Padding is
# no work done: tokens are counted where there is a target, and nowhere else. (With causal attention padding at the end
# needs no mask: no real token looks at it.) These rows are not compiled, because each length would be compiled anew.

# %%
lab.run("shapes_of_text")
lab.show_words("shapes_of_text", words.padding_words)
lab.show_figure("shapes_of_text", figures.padding)
lab.show_tables("shapes_of_text", tables.shaping_table)

# %% [markdown]
# ## What ran
#
# The same steps on the device's own timeline. A starved GPU is not slower in what it does: it stands still in between.
# The utilisation of `nvidia-smi` is the share of time in which any kernel ran. It falls too, but it does not say for what
# the device waited; the marks do.

# %%
lab.show_figure("data_pipeline", figures.starvation_timeline)
lab.show_words("data_pipeline", words.prefetch_words)

# %% [markdown]
# ## Same training?
#
# The ways to carry a batch and the workers change no batch and no order; tests compare them. Text that is tokenised on
# the way is the same text in another order, which depends on the number of workers. Packing and padding differ in what
# a token sees: in a packed window attention looks across the border between two texts, as it did when GPT-2 was trained.

# %%
lab.show_code(shaping.padded, shaping.packed)

# %% [markdown]
# ## On other cards
#
# A slower card hides a slower loader. No worker is needed while what the host needs to load a batch and then to queue a
# step stays below the step of the GPU; above it take `load_ms / step_ms` workers, rounded up. Where queuing alone takes
# as long as the step, each millisecond of loading counts, and one worker is the cure. Machines with few cores for each
# GPU, as clouds lend them, come to the knee first. On Windows and macOS each worker is started anew and reads the data set again.
#
# **DALI and its like** move decoding, cropping and resampling to the GPU.
# [NVIDIA's own description](https://github.com/NVIDIA/DALI) names images, video and audio, whose samples cost a core
# milliseconds each and are large once decoded. There it can pay, and its
# [questions and answers](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/faq.html) say how to find out: train
# some steps on one and the same batch, as the row *on the device* does here. If that is no faster, no loader will help.
# For text it does not pay. Its maintainers
# [answered](https://github.com/triton-inference-server/dali_backend/issues/86) that there is no text processing, and
# that tokenising would gain little on a GPU. Tokenised once, a batch of ids costs a slice of an array.
#
# ## What we learned
#
# * *Use as many workers as cores less one, or two for each GPU.* Look at the table: it is the cost of a batch that
#   decides. With ids in a mapped file there is hardly any.
# * *More workers always help.* They help a loader that is slower than the step. A worker hands its batch over through
#   shared memory, which is no gain where the batch is a slice of an array: compare the rows with none, one and many.
# * *Raise `prefetch_factor`.* It bridges hiccups. A loader that is too slow on the average stays too slow.
# * *Pinned memory is mandatory.* Compare the rows by how a batch is carried, and believe the ones that are clear.
#
# ## Try it yourself
#
# * No GPU: take `slot.released` out of `CudaCopies` and run `tests/test_double_buffer.py`. How many orders does it take
#   until a wrong batch is read?
# * No GPU: for texts of one length, which of the four ways to make batches is the best?
# * With a GPU: `speedlab kernels padded_vocab --trace FILE` shows the copies in the timeline. Which stream are they in?

# %%
lab.finish()
