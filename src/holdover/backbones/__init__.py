"""Hugging Face models: the only room that knows their internals."""
