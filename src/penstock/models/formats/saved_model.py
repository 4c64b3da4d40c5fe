"""SavedModel folders: a graph, its variables and its signatures. TF-Hub folders and estimator exports are such, too."""

import os

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest
from penstock.models.facts import Malformed, damaged, listed, refuse_untrusted
from penstock.models.scan import wire
from penstock.models.scan.graph import Graph
from penstock.models.scan.op_reachability import ASSET, CHECKPOINT, Label, Reach
from penstock.models.scan.paths import climbs, links_out

_GRAPH = "saved_model.pb"
_HUB = "tfhub_module.pb"
_INITIALISERS = frozenset({"saved_model_main_op", "legacy_init_op", "table_initializer"})
_ASSET_KIND = 5
_KINDS = frozenset({4, _ASSET_KIND, 6, 7, 8, 9, 10, 12})
"""The fields of a SavedObject that give the kind of the object; one of them is set."""
_INITIALISER_SIGNATURE = "__saved_model_init_op"


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The model in a folder that holds `saved_model.pb`, or the newest in a folder of numbered exports; else None."""
    folder = _folder_of(location)
    if folder is None:
        return None
    path = os.path.abspath(folder)
    refuse_untrusted(location, _look(path)[1], trust)
    return ModelFile("saved_model", path, digest.of_folder(path), ("tensorflow",), signature, trust)


def facts(file: ModelFile) -> FileFacts:
    """What the folder says about itself."""
    versions, needs_trust = _look(file.location)
    size = sum(os.path.getsize(path) for path in digest.files_below(file.location))
    notes = []
    if os.path.isfile(os.path.join(file.location, _HUB)):
        notes.append("it is a TF-Hub module of TensorFlow 1")
    siblings = _exports(os.path.dirname(file.location))
    if len(siblings) > 1 and file.location in siblings:
        which = "the newest" if file.location == siblings[-1] else "not the newest"
        notes.append(f"it is {which} of {len(siblings)} exports in {os.path.dirname(file.location)}")
    writer = listed(f"TensorFlow {version}" for version in versions if version)
    return FileFacts(writer or None, size, needs_trust, tuple(notes))


def _folder_of(location: str) -> str | None:
    if os.path.basename(location) == _GRAPH and os.path.isfile(location):
        return os.path.dirname(location) or "."
    if os.path.isfile(os.path.join(location, _GRAPH)):
        return location
    if os.path.isfile(os.path.join(location, _GRAPH + "txt")):
        raise ModelError("a SavedModel in text form cannot be loaded", received=location, allowed=_GRAPH)
    exports = _exports(location)
    return exports[-1] if exports else None


def _exports(folder: str) -> list[str]:
    """The numbered subfolders that hold a SavedModel, oldest first: estimators name them by the time of the export."""
    if not os.path.isdir(folder):
        return []
    names = sorted((name for name in os.listdir(folder) if name.isascii() and name.isdigit()), key=int)
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if os.path.isfile(os.path.join(path, _GRAPH))]


def _look(folder: str) -> tuple[list[str], tuple[str, ...]]:
    """The versions of TensorFlow that wrote the graphs, and sentences that say what in them needs trust."""
    path = os.path.join(folder, _GRAPH)
    versions: list[str] = []
    needs_trust: list[str] = []
    try:
        meta_graphs = list(wire.messages(wire.opened(path), 2))
        if not meta_graphs:
            raise Malformed("it holds no graph")
        for message in meta_graphs:
            meta_graph = MetaGraph(message)
            versions += [wire.text(info, 5) for info in wire.messages(message, 1)]
            needs_trust += meta_graph.needs_trust()
    except Malformed as error:
        raise damaged(path, "a SavedModel", error) from None
    except OSError as error:
        raise ModelError("the model cannot be read", received=f"{path}: {error.strerror}") from error
    needs_trust += [f"it links to a file outside of its folder: {link}" for link in links_out(folder)]
    return versions, tuple(dict.fromkeys(needs_trust))


class MetaGraph:
    """One graph of a SavedModel, with everything by which a loader or a caller can enter it.

    Both loaders are covered: that of TensorFlow 1 runs the restore operation, the initialisers and the signatures of
    the graph; that of TensorFlow 2 runs functions that the object graph names.
    """

    def __init__(self, message: memoryview) -> None:
        self._message = message
        self._graph = Graph()
        for graph in wire.messages(message, 2):
            self._graph.add(graph)
        self._asset_names: list[str] = []
        self._asset_tensors: dict[str, str] = {}
        for asset in [*wire.messages(message, 6)] or self._assets_of_collection():
            self._asset_names += wire.texts(asset, 2)
            tensors = [name for info in wire.messages(asset, 1) for name in wire.texts(info, 1)]
            self._asset_tensors |= dict.fromkeys(tensors[-1:], ASSET)

    def needs_trust(self) -> list[str]:
        """Sentences that say what in the graph needs trust."""
        reach = Reach(self._graph)
        entries = self._enter_initialisers(reach) + self._enter_signatures(reach) + self._enter_objects(reach)
        self._enter_restore(reach)
        if not entries:
            reach.enter_all()
        climbing = [name for name in self._asset_names if climbs(name)]
        outside = [f"it names a file outside of its folder as an asset: {listed(climbing)}"] if climbing else []
        return [*reach.sentences(), *outside]

    def _assets_of_collection(self) -> list[memoryview]:
        """The assets that TensorFlow 1 recorded: messages of type `Any` in a collection."""
        return [
            content
            for key, collection in wire.map_entries(self._message, 4)
            if key == "saved_model_assets"
            for values in wire.messages(collection, 5)
            for packed in wire.messages(values, 1)
            for content in wire.messages(packed, 2)
        ]

    def _enter_restore(self, reach: Reach) -> None:
        savers = list(wire.messages(self._message, 3))
        file_names = [name for saver in savers for name in wire.texts(saver, 1)]
        labels = dict.fromkeys(file_names[-1:], CHECKPOINT)
        reach.enter_nodes([name for saver in savers for name in wire.texts(saver, 3)], labels)

    def _enter_initialisers(self, reach: Reach) -> int:
        names: list[str] = []
        for key, collection in wire.map_entries(self._message, 4):
            if key in _INITIALISERS:
                names += [name for nodes in wire.messages(collection, 1) for name in wire.texts(nodes, 1)]
            if key == "local_variables":
                protos = (each for values in wire.messages(collection, 2) for each in wire.messages(values, 1))
                names += [name for variable in protos for name in wire.texts(variable, 2)]
        for key, signature in wire.map_entries(self._message, 5):
            if key == _INITIALISER_SIGNATURE:
                names += _tensors(signature)
        # A loader feeds the paths of assets only to the initialisers; elsewhere, the graph itself sets them.
        reach.enter_nodes(names, self._asset_tensors)
        return len(names)

    def _enter_signatures(self, reach: Reach) -> int:
        tensors = [
            name
            for key, signature in wire.map_entries(self._message, 5)
            if key != _INITIALISER_SIGNATURE
            for name in _tensors(signature)
        ]
        reach.enter_nodes(tensors)
        return len(tensors)

    def _enter_objects(self, reach: Reach) -> int:
        """Enter every function that can be called on a loaded object, with the assets that it captures."""
        num_functions = 0
        for objects in wire.messages(self._message, 7):
            nodes = list(wire.messages(objects, 1))
            is_asset = [_is_asset(node) for node in nodes]
            captures: dict[str, list[Label]] = {}
            for name, value in wire.map_entries(objects, 2):
                places_of = wire.integers(value, 2)
                labels: list[Label] = [ASSET if i < len(nodes) and is_asset[i] else None for i in places_of]
                captures[name] = [] if name in captures else labels  # a name that comes twice: its captures are unknown
            for node in nodes:
                for number in (6, 8):  # a function with its variants; a single concrete function
                    for function in wire.messages(node, number):
                        for name in wire.texts(function, 1):
                            captures.setdefault(name, [])
            for name, labels in captures.items():
                reach.enter_function(name, labels)
            num_functions += len(captures)
        return num_functions


def _is_asset(node: memoryview) -> bool:
    """Whether an object is an asset and has no other kind: where several are set, a parser takes the last."""
    return [number for number, _ in wire.fields(node) if number in _KINDS] == [_ASSET_KIND]


def _tensors(signature: memoryview) -> list[str]:
    """The tensors that a signature fetches, also the parts of sparse and composite ones."""
    pending = [info for _, info in wire.map_entries(signature, 2)]
    names: list[str] = []
    while pending:
        info = pending.pop()
        names += wire.texts(info, 1)
        for sparse in wire.messages(info, 4):
            names += [name for number in (1, 2, 3) for name in wire.texts(sparse, number)]
        pending += [part for composite in wire.messages(info, 5) for part in wire.messages(composite, 2)]
    return names


FORMAT = ModelFormat("saved_model", "a SavedModel folder", recognise, facts, has_steps=True)
