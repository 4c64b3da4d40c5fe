"""Tables and text: Parquet, CSV, JSON lines, npy, lines of text."""
