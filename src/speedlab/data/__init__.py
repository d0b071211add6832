"""From a corpus to batches of token ids: corpus -> tokenizer -> tokens -> stream.

It knows nothing of models or of measuring. Only `stream` imports torch.
"""
