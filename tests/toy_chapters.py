"""Small chapters for the tests of the batch run: each is sound, or has exactly one fault."""

from __future__ import annotations

import signal
from pathlib import Path

HEADER = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A toy chapter

# %% tags=["parameters"]
profile: str = "auto"  # smoke or full
steps: int = 0  # 0: what the profile says
source: str = "auto"  # measure or recorded
"""

RESULT = """
# %%
from IPython.display import display

result = {{
    "chapter": "{chapter}", "profile": {profile}, "steps": steps, "source": source, "status": "measured",
    "session": "0123456789ab", "records": {records},
}}
display({{"application/vnd.speedlab.result+json": result, "text/plain": "done"}}, raw=True)
"""


def toy_source(chapter: str, middle: str = "", *, profile: str = "profile", records: str = "[]") -> str:
    """A chapter's source; `middle` is the code of a cell before the result."""
    cell = f"\n# %%\n{middle}\n" if middle else ""
    return HEADER + cell + RESULT.format(chapter=chapter, profile=profile, records=records)


def write_toys(folder: Path, toys: dict[str, str]) -> Path:
    """Write {stem: source} into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, source in toys.items():
        (folder / f"{stem}.py").write_text(source, encoding="utf-8")
    return folder


def heed_interrupts() -> None:
    """For a child before it starts: a shell that runs the tests in the background has Ctrl-C ignored in all of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
