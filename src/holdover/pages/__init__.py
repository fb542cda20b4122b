"""HTML pages and charts: one file each, which loads nothing from the network."""
