"""The kinds of carried state: one file a kind, under the contract in base.py.

Letters in shape comments, here and everywhere: B rows of a batch, T positions of a window, k width of
the hidden states, e width of the embeddings, m slots of the state, L layers, V vocabulary, N columns
of a text.
"""
