"""The report: what the records of experiments show, on one page and as Markdown."""
