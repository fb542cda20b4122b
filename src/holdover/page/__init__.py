"""Pages to look at in a browser: one file each, which loads nothing from anywhere."""

from .heat import Heat
from .lens import heat_of, write_lens_page
from .page import write_document, write_page

__all__ = ["Heat", "heat_of", "write_document", "write_lens_page", "write_page"]
