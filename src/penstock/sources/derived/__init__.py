"""Sources made from another source."""
