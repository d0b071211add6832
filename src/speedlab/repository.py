"""Where the project lives, in one place, for badges, installs and links."""

REPOSITORY = "gpt2-speedlab/gpt2-speedlab"  # owner and name on GitHub
REPOSITORY_URL = f"https://github.com/{REPOSITORY}"
BRANCH = "main"


def colab_url(stem: str) -> str:
    """Address that opens a chapter's converted notebook in Colab; `stem` is "02_tensor_cores" and the like."""
    return f"https://colab.research.google.com/github/{REPOSITORY}/blob/{BRANCH}/notebooks/colab/{stem}.ipynb"
