"""Tar files of samples."""
