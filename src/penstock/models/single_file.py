"""Formats whose models are single files: a file is recognised by name or contents, checked, and refused or accepted."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.models import digest
from penstock.models.facts import refuse_signature, refuse_untrusted, require_file


@dataclass(frozen=True)
class SingleFile:
    """One format whose models are single files.

    Args:
        kind: The kind of the `ModelFile`.
        what: A noun for messages: `a .keras file`.
        runtimes: Those that can run it, best first.
        is_ours: Whether a location is of this format.
        look: What the file at a path says about itself, given the modules of classes that the user named; raises
            ModelError where it is damaged.
        has_signatures: Whether the user may choose one of several signatures.
    """

    kind: str
    what: str
    runtimes: tuple[str, ...]
    is_ours: Callable[[str], bool]
    look: Callable[[str, tuple[str, ...]], FileFacts]
    has_signatures: bool = False

    def format(self, suffix: str, *, has_steps: bool = False) -> ModelFormat:
        return ModelFormat(self.kind, suffix, self.recognise, self.facts, has_steps=has_steps)

    def recognise(
        self, location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
    ) -> ModelFile | None:
        if not self.is_ours(location):
            return None
        path = require_file(location)
        seen = self.look(path, own)
        if not self.has_signatures:
            refuse_signature(self.what, signature)
        refuse_untrusted(location, seen.needs_trust, trust)
        return ModelFile(self.kind, path, digest.of_files([("model", path)]), self.runtimes, signature, trust)

    def facts(self, file: ModelFile) -> FileFacts:
        return self.look(file.location, file.custom_objects)
