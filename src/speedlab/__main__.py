"""`python -m speedlab`: the same command as `speedlab`."""

from speedlab.cli import main

main()
