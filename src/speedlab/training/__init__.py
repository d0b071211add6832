"""A whole training step from a recipe. It knows the model and PyTorch; it does not time anything."""
