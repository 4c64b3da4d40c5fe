"""The manifest: everything that is fixed when a job starts, so that a resumed run gives the same bits."""

import base64
import itertools
import json
import operator
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from penstock.core.records import Binding, Feature, Fragment, OutputSchema, Recipe, Span, TensorSpec
from penstock.core.typed import check_types
from penstock.errors import OutputError
from penstock.options.records import Nulls
from penstock.storage import stored_spans
from penstock.storage.disk import INTERNAL
from penstock.storage.places import Place
from penstock.storage.seal import CHECKSUM, check_seal, sealed
from penstock.storage.stored_spans import StoredSpans, nested_tuples

MANIFEST_VERSION = 7
_CONTINUED_VERSION = 6
"""A job of this version or a later one can be continued."""
_READABLE_VERSION = 4
"""A job of this version or a later one can be looked at and removed."""
_GONE_ON_WITH = f"{_CONTINUED_VERSION} to {MANIFEST_VERSION}"
MANIFEST = f"{INTERNAL}/manifest.json"
_VERSION = "penstock_manifest"
KIND, FIT = "kind", "fit"
"""What marks the manifest of a training job (`fit_manifest`), which has the same file name."""
IS_NEW = "it was not there then"
ARE_OTHERS = "some of these files were added or removed, or have another size"
_NOT_BY_HAND = "put back the manifest that penstock wrote, or begin again: with another output, or after removing it"
_GROUP = re.compile(r"(?<= more): [0-9a-f]{32}$")
_FEW = 8
"""A longer list is not shown whole in a message."""
_OF_MODELS = ("model", "weights", "checkpoint")
"""The fields of a request that name files or folders whose content the digest of the model covers. It also covers the
modules in `custom_objects`."""
_SINCE_THEN = "which made other pixels of images than --interpolation does now, so that its job is not gone on with"


@dataclass(frozen=True)
class Generation:
    """Files that a job was given at once: those that it began with, or those of one append.

    Their fragments, spans and parts go on to where those of the next generation begin, or to the end.

    Args:
        first_fragment: The first of their fragments in the manifest.
        first_span: Their first span.
        first_part: Their first part.
        packed_paths: Their paths, where a fragment stands for several files (`pack_paths`); "" where each has its own.
        num_packed: How many these are.
        division: How they were divided into spans: the rows of a span, and the most rows where the format needs larger
            spans. An older penstock did not record it.
    """

    first_fragment: int = 0
    first_span: int = 0
    first_part: int = 0
    packed_paths: str = ""
    num_packed: int = 0
    division: tuple[int, int] = (1, 1)


def pack_paths(paths: Iterable[str]) -> str:
    """Paths in a few bytes each, as text.

    >>> unpack_paths(pack_paths(["/photos/1.jpg", "/photos/2.jpg"]))
    ['/photos/1.jpg', '/photos/2.jpg']
    """
    packer = zlib.compressobj(1)
    pieces = [packer.compress(os.fsencode(path) + b"\0") for path in paths]
    return base64.b64encode(b"".join((*pieces, packer.flush()))).decode()


def unpack_paths(packed: str) -> list[str]:
    """The paths that `pack_paths` was given.

    Raises:
        ValueError: They were altered.
    """
    try:
        return [os.fsdecode(path) for path in zlib.decompress(base64.b64decode(packed)).split(b"\0")[:-1]]
    except zlib.error as error:
        raise ValueError(f"the list of its files is damaged: {error}") from error


@dataclass(frozen=True)
class NodeKind:
    """How nodes of one kind run the job: the recipe of parts that were built there, its split, and its versions."""

    recipe: Recipe
    split: tuple[int, int] | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """A job as it was started, and as each append changed it.

    Args:
        request: What the user asked for, as plain JSON: enough to start the job again.
        model_digest: The digest of what was loaded: the model's files, its weights, the modules of its classes.
        fingerprint: A digest of the model, the fragments and every option that changes the output.
        fragments: The input files.
        recipe: What decides the bits.
        bindings: Which columns feed which input.
        schema: What is written.
        spans: Every span of the input.
        parts: The first span of every planned part.
        versions: The versions of what wrote this.
        weights: A digest, for a model that a function built.
        max_failures: The share of rows that may fail in a resumed run that does not give its own.
        decoder: Which decoder decodes photos in a resumed run that does not give its own.
        part_rows: Where the input streams, spans and parts are not known when the job starts: a part ends when it has
            so many rows. None for all other inputs.
        streamed: The spans and rows that such an input had, once it has ended.
        split: Replicas on each device, and batches in flight in each: no bit depends on them, but the speed does.
        columns: What is read of the input.
        part_suffix: How the names of part files end; kept because the sink may be gone when they are to be removed.
        part_folders: The folders that hold part files, relative to the output; "" is the output itself.
        generations: The files that the job began with, and those of each append.
        kinds: The kinds of machines that run the job, by name. `recipe`, `split` and `versions` are those of the first.
        version: The version of the manifest's format.
    """

    request: dict[str, Any]
    model_digest: str
    fingerprint: str
    fragments: tuple[Fragment, ...]
    recipe: Recipe
    bindings: tuple[Binding, ...]
    schema: OutputSchema
    spans: StoredSpans | tuple[Span, ...]
    parts: tuple[int, ...]
    versions: dict[str, str] = field(default_factory=dict)
    weights: str | None = None
    max_failures: float = 0.1
    decoder: str = "auto"
    part_rows: int | None = None
    streamed: tuple[int, int] | None = None
    split: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()
    part_suffix: str = ".parquet"
    part_folders: tuple[str, ...] = ("",)
    generations: tuple[Generation, ...] = (Generation(),)
    kinds: dict[str, NodeKind] = field(default_factory=dict)
    version: int = MANIFEST_VERSION

    @property
    def is_older(self) -> bool:
        """Whether an older penstock wrote this: it can be looked at and removed."""
        return self.version < _CONTINUED_VERSION

    def kind(self, name: str) -> NodeKind:
        """How nodes of a kind run the job; "" is the first kind.

        Raises:
            KeyError: No node of this kind has run it.
        """
        return self.kinds[name] if name else NodeKind(self.recipe, self.split, self.versions)

    @property
    def first_kind(self) -> str:
        """The name of the first kind; empty where the job began without one."""
        return next((name for name, kind in self.kinds.items() if kind.recipe == self.recipe), "")

    @property
    def rows(self) -> int:
        if self.streamed is not None:
            return self.streamed[1]
        return self.spans[-1].stop if self.spans else 0

    @property
    def num_spans(self) -> int | None:
        """How many spans there are; None while they still come."""
        if self.part_rows is None:
            return len(self.spans)
        return self.streamed[0] if self.streamed is not None else None

    def paths_of(self, generation: int) -> list[str]:
        """The files of a generation, in their order.

        Raises:
            ValueError: The list was altered.
        """
        this, *later = self.generations[generation : generation + 2]
        if this.packed_paths:
            return unpack_paths(this.packed_paths)
        stop = later[0].first_fragment if later else len(self.fragments)
        return [fragment.path for fragment in self.fragments[this.first_fragment : stop]]

    def save(self, place: Place) -> None:
        """Put the manifest into its place, whole."""
        document = vars(self) | {
            "fragments": [[f.path, f.size, f.mtime_ns] for f in self.fragments],
            "recipe": self.recipe.as_json(),
            "bindings": [asdict(binding) for binding in self.bindings],
            "schema": asdict(self.schema),
            "spans": stored_spans.as_json(self.spans),
            "generations": [asdict(generation) for generation in self.generations],
            "kinds": {name: vars(kind) | {"recipe": kind.recipe.as_json()} for name, kind in self.kinds.items()},
        }
        del document["version"]
        place.write(MANIFEST, sealed({_VERSION: MANIFEST_VERSION, **document}))


def load_manifest(place: Place) -> Manifest | None:
    """The manifest of a place; None where there is none.

    Raises:
        OutputError: The manifest is damaged, or of a version that this penstock cannot read.
    """
    path = place.address(MANIFEST)
    try:
        content = place.read(MANIFEST)
        if content is None:
            return None
        document = json.loads(content)
    except (ValueError, OSError, RecursionError) as error:
        raise OutputError("the manifest cannot be read", received=f"{path}: {error}", hint=_NOT_BY_HAND) from error
    version = document.get(_VERSION) if isinstance(document, dict) else None
    if isinstance(document, dict) and document.get(KIND) == FIT:
        raise OutputError(
            "the folder holds a training job, and no predictions",
            received=place.address(),
            hint="choose another --output; its model is model.keras in there",
        )
    if not isinstance(version, int) or not _READABLE_VERSION <= version <= MANIFEST_VERSION:
        is_older = isinstance(version, int) and version < MANIFEST_VERSION
        raise OutputError(
            "the manifest is of another version of penstock",
            received=f"{path}: version {version}" + (f", {_SINCE_THEN}" if is_older else ""),
            allowed=f"versions {_GONE_ON_WITH}",
            hint="go on with the penstock that began it, or begin again in another folder",
        )
    try:
        if version >= _CONTINUED_VERSION:
            check_seal(content)
        else:
            document = _converted(document)
        manifest = _from_document(document)
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        said = f"{path}: {type(error).__name__} {error}"
        raise OutputError("the manifest is damaged", received=said, hint=_NOT_BY_HAND) from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Check that a manifest can be used.

    Raises:
        TypeError: A field has another type.
        ValueError: A field has a value that no job has.
    """
    check_types(manifest)
    _check_generations(manifest.generations, len(manifest.fragments), len(manifest.spans))
    is_streamed = manifest.part_rows is not None
    parts = manifest.parts
    wrong = {
        "spans": is_streamed == bool(manifest.spans),
        "parts": is_streamed == bool(parts) or parts[:1] != (0,)[: len(parts)] or list(parts) != sorted(set(parts)),
        "the last part": bool(parts) and parts[-1] >= max(1, len(manifest.spans)),
        "recipe": manifest.recipe.batch_size < 1 or manifest.recipe.threads < 0,
        "schema": not 0 <= manifest.schema.num_outputs <= len(manifest.schema.columns),
        "part_rows": manifest.part_rows is not None and manifest.part_rows < 1,
        "streamed": manifest.streamed is not None and (not is_streamed or min(manifest.streamed) < 0),
        "division": any(min(each.division) < 1 for each in manifest.generations),
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"no job has such {what}")


def _from_document(document: dict[str, Any]) -> Manifest:
    """The manifest that `save` made a document of. Fields that are no records are as they are in JSON."""
    schema = document["schema"]
    records = {
        "fragments": tuple(Fragment(*entry) for entry in document["fragments"]),
        "recipe": Recipe(**document["recipe"]),
        "bindings": tuple(map(_binding, document["bindings"])),
        "schema": OutputSchema(tuple(map(_spec, schema["columns"])), schema["num_outputs"]),
        "spans": StoredSpans(document["spans"]),
        "generations": tuple(
            Generation(**{name: nested_tuples(value) for name, value in entry.items()})
            for entry in document["generations"]
        ),
        "kinds": {name: _kind(entry) for name, entry in document.get("kinds", {}).items()},
        "version": document[_VERSION],
    }
    others = (*records, _VERSION, CHECKSUM)
    plain = {name: nested_tuples(value) for name, value in document.items() if name not in others}
    return Manifest(**plain, **records)


def _check_generations(generations: Sequence[Generation], fragments: int, spans: int) -> None:
    """Refuse generations that do not follow each other from the first file and the first span on."""
    firsts = [(each.first_fragment, each.first_span, each.first_part) for each in generations]
    is_growing = all(all(map(operator.lt, *pair)) for pair in itertools.pairwise(firsts))
    if not firsts or firsts[0] != (0, 0, 0) or not is_growing or (len(firsts) > 1 and firsts[-1] >= (fragments, spans)):
        raise ValueError(f"generations that begin at {firsts}")


def _converted(document: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an older version, with the fields that it lacks."""
    format_ = document["request"]["format"]
    names = [column["name"] for column in document["schema"]["columns"]]
    folders = ["row", *names] if format_ == "npy" else [""]
    return {"generations": [{}], "part_suffix": f".{format_}", "part_folders": folders} | document


def older_job(place: Place, manifest: Manifest) -> OutputError:
    """The error for a job that an older penstock wrote."""
    return OutputError(
        "the job in the output folder was written by an older version of penstock",
        received=f"{place.address()}: penstock {manifest.versions.get('penstock', 'unknown')}, "
        f"manifest version {manifest.version}",
        allowed=f"manifest versions {_GONE_ON_WITH}",
        hint="go on with the penstock that began it; or begin again in another folder, or here with --overwrite. "
        f"What is there can be read, but this penstock, also where its number is the same, goes on only with "
        f"manifests of versions {_GONE_ON_WITH}, and this one has version {manifest.version}",
    )


def _kind(entry: dict[str, Any]) -> NodeKind:
    return NodeKind(Recipe(**entry["recipe"]), nested_tuples(entry["split"]), entry["versions"])


def _binding(entry: dict[str, Any]) -> Binding:
    features = tuple(Feature(**feature | {"shape": nested_tuples(feature["shape"])}) for feature in entry["features"])
    plain = {name: nested_tuples(value) for name, value in entry.items()}
    return Binding(**plain | {"features": features, "nulls": Nulls(**entry["nulls"])})


def _spec(entry: dict[str, Any]) -> TensorSpec:
    return TensorSpec(**entry | {"shape": nested_tuples(entry["shape"])})


def is_fresh(place: Place) -> bool:
    """Whether a job may start in this place: it is absent, empty, or holds only what a job left before it began."""
    children = place.children()
    return children is None or (set(children) <= {INTERNAL} and not has_job(place))


def has_job(place: Place) -> bool:
    """Whether there is a manifest, which is not read for that: it may be large."""
    return MANIFEST in place.sizes(INTERNAL)


def describe_difference(then: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """What differs between the request of the job in a folder and the one that was asked for, in words."""
    changed = [key for key in request if request[key] != then.get(key)]
    if changed:
        return ", ".join(_described(key, request[key], then.get(key)) for key in changed[:3])
    files = [request.get(name) for name in _OF_MODELS]
    named = ", ".join(filter(None, (*files, *request.get("custom_objects", ()))))
    return f"the content of the model was changed since the job began{f': {named}' if named else ''}"


def _described(key: str, now: Any, then: Any) -> str:
    """One difference. A function is described by its place and a digest of what is in it (`steps.as_json`)."""
    places = [value.get("location", value) if isinstance(value, dict) else value for value in (now, then)]
    if isinstance(now, dict) and places[0] == places[1]:
        named = str(places[0])
        module = named if now.get("by_value") else f"the module of {named}, or one that it imports,"
        return f"--{key.replace('_', '-')}: {module} was changed since the job began; put it back to go on"
    here, there = (_shown(value, other) for value, other in (places, reversed(places)))
    return f"{key}={here} (there: {there})"


def _shown(value: Any, other: Any) -> str:
    """A value; of a long list, such as that of all input files, only the first entry that another one does not have."""
    if not isinstance(value, list) or len(value) <= _FEW:
        return repr(value)
    known = set(map(repr, other)) if isinstance(other, list) else set()
    own = next((each for each in value if repr(each) not in known), value[0])
    return f"[… {own!r} …, {len(value):,} in all]"


class OfFiles(Protocol):
    """The manifest of any job: it lists the files of its input."""

    @property
    def fragments(self) -> tuple[Fragment, ...]: ...


def changed_files(old: OfFiles, fragments: Sequence[Fragment]) -> dict[str, str | None]:
    """The input files that are not as they were when the job began, and how: None where only their time differs.

    Files that are missing, are new, or have another size come first.
    """
    before = {fragment.path: fragment for fragment in old.fragments}
    after = {fragment.path: fragment for fragment in fragments}
    groups = [path for path in after.keys() ^ before.keys() if _GROUP.search(path)]
    if groups:
        # One fragment stands for many small files: its name has a digest of their names and sizes.
        return {_GROUP.sub("", min(groups)): ARE_OTHERS}
    changes: dict[str, str | None] = {path: "it is not there any more" for path in before if path not in after}
    changes |= {path: IS_NEW for path in after if path not in before}
    common = [path for path in after if path in before]
    sizes = {path: (before[path].size, after[path].size) for path in common}
    changes |= {path: f"{new:,} bytes; it had {old:,}" for path, (old, new) in sizes.items() if old != new}
    if not changes and list(before) != list(after):
        return dict.fromkeys(list(after)[:1], "the files are in another order")
    return changes | {path: None for path in common if path not in changes and before[path] != after[path]}
