"""Text: where it comes from, how it becomes ids, and the cache that keeps them.

* A `Source` gives documents, an `Encoder` makes ids of them, `tokenise` puts the two together once
  and maps the result into memory.
* Nothing here holds a corpus in memory, and nothing needs the network unless a hub name is given.
"""

from .cache import tokenise
from .corpora import CORPORA
from .document import Document
from .encoders import open_encoder
from .sources import open_source
from .tokens import Tokens

__all__ = ["CORPORA", "Document", "Tokens", "open_encoder", "open_source", "tokenise"]
