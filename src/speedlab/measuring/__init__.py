"""Time, memory, kernels and losses of training steps, turned into records. It knows nothing of the book."""
