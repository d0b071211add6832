"""Kernels that read and write each tensor once, where a compiler leaves passes over memory.

Each is one function with a plain PyTorch form that runs anywhere and a Triton form for a GPU. They know no recipe.
"""
