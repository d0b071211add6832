"""Measurements on disk: what a record holds, where it lies, what is computed from it. Never imports torch or pandas."""
