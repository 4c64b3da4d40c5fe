"""Where predictions go: one file per format. A part is written under a temporary name; storage renames it."""
