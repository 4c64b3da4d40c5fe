"""The command line: commands, flags, what they print."""

from penstock.cli.commands import main

__all__ = ["main"]
