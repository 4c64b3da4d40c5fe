"""Zip archives, checked before anything is taken out of them."""

from __future__ import annotations

import stat
import zipfile

from penstock.models.facts import Malformed, shown_bytes
from penstock.models.scan.paths import climbs

_BOMB_FLOOR = 256 << 20
_BOMB_FACTOR = 200


def check(archive: zipfile.ZipFile) -> None:
    """Raise for an archive that nobody packs by accident.

    Raises:
        Malformed: A member climbs out of the folder it is unpacked to, is a link, comes twice, or grows beyond measure.
    """
    names = set()
    for member in archive.infolist():
        if climbs(member.filename) or climbs(member.orig_filename):
            raise Malformed(f"the member {member.filename!r} leads out of the archive")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise Malformed(f"the member {member.filename!r} is a link")
        if member.filename in names:
            raise Malformed(f"the member {member.filename!r} comes twice")
        names.add(member.filename)
        if member.file_size > _BOMB_FLOOR and member.file_size > _BOMB_FACTOR * max(member.compress_size, 1):
            raise Malformed(
                f"the member {member.filename!r} grows from {shown_bytes(member.compress_size)}"
                f" to {shown_bytes(member.file_size)}"
            )
