"""Forecasters: Informer, RSA-Informer, DLinear, an LSTM, and naive ones."""
