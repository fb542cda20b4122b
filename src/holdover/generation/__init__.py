"""Reading and writing token by token: transformers' generate, streams, sessions."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".session": "Session",
        ".session_file": "read_session",
        ".writer": "Sampler Writer",
    },
)
