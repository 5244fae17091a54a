"""Embeddings of tokens, and class tokens; positions are a `bias`, in `linear`."""
