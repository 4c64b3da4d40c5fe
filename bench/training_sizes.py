"""What both sides of R agree on."""

LABEL = "label"
PHOTO_SIZE = (224, 224)
WINDOW_ROWS = {True: 42_000, False: 180_000}
"""Rows that are shuffled at once, as in Penstock's windows: of a nested column of 784 pixels, and of 30 columns."""
