"""Whole architectures of our own: Transformer-XL and Block-Recurrent."""
