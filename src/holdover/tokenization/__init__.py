"""Text files to token ids, in pieces, and back."""
