"""Text from a model, token by token. It knows ids, not words, and draws from a generator of its own.

Shapes: T tokens so far, V ids that the tokenizer knows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from speedlab.errors import BadInput


def next_token_logits(model: nn.Module, ids: list[int], vocab_size: int) -> Tensor:
    """Logits (V,) in float32 for the token after `ids`; those of a padded vocabulary are cut off, not masked later."""
    context = getattr(model, "context_length", len(ids))
    device = next(model.parameters()).device
    tokens_1T = torch.tensor([ids[-context:]], device=device)
    return model(tokens_1T)[0, -1, :vocab_size].float()


@torch.no_grad()
def sample(
    model: nn.Module,
    ids: list[int],
    *,
    new_tokens: int,
    vocab_size: int,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
) -> list[int]:
    """`ids` and `new_tokens` more, every one below `vocab_size`, so that the tokenizer can decode all of them.

    temperature: 0 takes the likeliest token each time. top_k: draw from that many likeliest ones. The model runs in
    evaluation mode and is put back; the global random state is left alone, so that training goes on as if nothing
    had been sampled.
    """
    if not ids:
        raise BadInput("there is nothing to continue: give at least one token, such as the end-of-text")
    if temperature < 0 or top_k < 1 or new_tokens < 0:
        raise BadInput(
            f"temperature {temperature}, top_k {top_k}, new_tokens {new_tokens}: they must be at least 0, 1 and 0"
        )
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    model.eval()
    try:
        ids = list(ids)
        for _ in range(new_tokens):
            logits_V = next_token_logits(model, ids, vocab_size).cpu()
            ids.append(_choose(logits_V, temperature, top_k, generator))
        return ids
    finally:
        model.train(was_training)


def _choose(logits_V: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    likeliest = logits_V.topk(min(top_k, len(logits_V)))
    probabilities = (likeliest.values / temperature).softmax(dim=0)
    return int(likeliest.indices[torch.multinomial(probabilities, 1, generator=generator)])
