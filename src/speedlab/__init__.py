"""GPT-2 Speed Lab: measure and explain what makes training GPT-2 fast.

Importing the package imports nothing heavy: neither torch nor matplotlib is loaded until something needs it.
"""

__version__ = "0.1.0"
