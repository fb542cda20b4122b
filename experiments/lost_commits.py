"""What is said of records whose commit cannot be looked up any more."""

LOST = (
    "Of the commits that records of attention and forecasting name, 12bc3bc54c86 and 859c5eff6969 are "
    "not in the history: how the code of those runs differed from that around them cannot be looked up."
)
