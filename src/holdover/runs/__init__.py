"""Runs: settings, where numbers come from, several processes, and models by name."""
