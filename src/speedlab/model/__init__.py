"""GPT-2, with a slow and a fast version of each part side by side. It knows recipes; it does not train or measure."""

from speedlab.model.gpt import GPT
from speedlab.model.weights import canonical_weights, draw_weights, load_weights

__all__ = ["GPT", "canonical_weights", "draw_weights", "load_weights"]
