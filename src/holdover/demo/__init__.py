"""The demonstration that `holdover demo` runs."""
