"""Turns: only one life of the process that trains may write into the folder of a training job.

A machine that was cut off may come back after its work was given to another, and still write. So the coordinator makes
a folder for each life, and removes those of earlier lives. A life makes a file in its folder and renames it to its
place; to remove a file, it renames it into its folder first. A life whose folder is gone can do neither.
"""

import os
import secrets
import shutil
from contextlib import suppress

from penstock.storage.disk import internal, make_folders, temporary_name

_STAGING = "staging"


def take_turn(output: str) -> str:
    """Make the folder of the next life; from now on, nothing that an earlier life still writes reaches the job.

    Raises:
        OSError: The disk refuses.
    """
    end_turns(output)
    folder = internal(output, _STAGING, secrets.token_hex(4))
    make_folders(folder)
    return folder


def end_turns(output: str) -> None:
    """Remove the folders of all lives, with the unfinished files in them."""
    root = internal(output, _STAGING)
    with suppress(FileNotFoundError):
        for name in os.listdir(root):
            # Renamed first: a late writer may make files as fast as they are removed.
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
