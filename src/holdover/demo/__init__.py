"""The demonstration: what `holdover demo` runs."""
