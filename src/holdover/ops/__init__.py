"""Scans, recurrence matrices and relative attention: tensors in, tensors out, no model."""
