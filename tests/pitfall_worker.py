"""What each rank runs in test_pitfalls.py: says which one it is, and which plotting backend it was given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    import matplotlib

    words = f"{os.environ['LOCAL_RANK']} of {os.environ['WORLD_SIZE']}: {matplotlib.get_backend()}"
    (Path(sys.argv[1]) / os.environ["RANK"]).write_text(words)
