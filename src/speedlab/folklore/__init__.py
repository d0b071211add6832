"""Folklore on trial: what is said about training speed, as claims that experiments judge. It needs no torch."""
