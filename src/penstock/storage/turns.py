"""Whose turn it is to write into the folder of a training job: that of one life of the process that trains.

A machine that was cut off may come back after its work was given to another, and still write. So the coordinator makes
a folder for each life, and takes away those of earlier ones. A file is made in there and renamed into its place; one
that is too many is renamed into there and removed. Whose folder is gone, can do neither.
"""

import os
import secrets
import shutil
from contextlib import suppress

from penstock.storage.disk import internal, make_folders, temporary_name

_STAGING = "staging"


def take_turn(output: str) -> str:
    """Make the folder of the next life; nothing that an earlier one still writes reaches the job from now on.

    Raises:
        OSError: The disk refuses.
    """
    end_turns(output)
    folder = internal(output, _STAGING, secrets.token_hex(4))
    make_folders(folder)
    return folder


def end_turns(output: str) -> None:
    """Take away the folders of all lives, with what was not whole."""
    root = internal(output, _STAGING)
    with suppress(FileNotFoundError):
        for name in os.listdir(root):
            # At once: a late writer may make files as fast as they are removed.
            over = os.path.join(root, f"over-{secrets.token_hex(4)}")
            os.rename(os.path.join(root, name), over)
            shutil.rmtree(over, ignore_errors=True)
        with suppress(OSError):
            os.rmdir(root)


def remove_in_turn(path: str, staging: str | None) -> None:
    """Remove a file, if the turn is not over.

    Raises:
        OSError: It is, or there is no such file, or the disk refuses.
    """
    temporary = temporary_name(path, staging)
    os.replace(path, temporary)
    os.remove(temporary)
