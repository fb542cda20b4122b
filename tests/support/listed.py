"""A source of texts that are given in a list."""

from holdover.tokenization.document import Document


class Listed:
    """Documents from a list of (text, scored)."""

    name, split, has_splits = "listed", "train", False

    def __init__(self, *texts, mark="1"):
        self.texts = [text if isinstance(text, tuple) else (text, None) for text in texts]
        self.mark = mark
        self.reads = 0

    def documents(self):
        for number, (text, scored) in enumerate(self.texts):
            self.reads += 1
            yield Document(f"listed-{number}", lambda text=text: iter([text.encode()]), scored)

    def fingerprint(self):
        return self.mark

    def size(self):
        return None
