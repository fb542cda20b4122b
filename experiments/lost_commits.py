"""A threat to validity: records whose commit no longer exists."""

LOST = (
    "Records of attention and forecasting name the commits 12bc3bc54c86 and 859c5eff6969, which are not "
    "in the history: how the code of those runs differed from nearby commits cannot be checked."
)
