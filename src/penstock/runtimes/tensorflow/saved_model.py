"""SavedModels of every age: signatures, `__call__` where there are none, TF-Hub folders, Estimator exports."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.records import ANY_SIGNATURE, ModelFile, Signature
from penstock.errors import ModelError, one_line
from penstock.runtimes.frameworks import tf
from penstock.runtimes.keras.call_structure import TensorLeaf, leaves, pick, rebuilt
from penstock.runtimes.tensorflow.composite_arguments import composites
from penstock.runtimes.tensorflow.graph_arguments import Arguments, Given, Step, arguments, output_spec, scaler
from penstock.runtimes.tensorflow.parsed_features import parsed_features

CALL = "__call__"
"""The name, for `--signature`, of the model itself: a SavedModel may have no signatures."""
_PREFERRED = ("serving_default", "predict", "classification", "regression", "default")
"""Names of signatures, best first. The last is of TF-Hub's first format; Estimators use the others."""


@dataclass(frozen=True)
class _Entry:
    """One way to run a SavedModel.

    `specs` and `outputs` are names to TensorFlow's specs. `call` takes tensors by name, sparse and ragged ones whole.
    `placeholders` are the names of the graph's placeholders in the order of `specs`, if no argument is taken in parts.
    """

    name: str
    function: Any
    specs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    call: Callable[[dict[str, Any]], dict[str, Any]]
    structure: str = "dict"
    placeholders: tuple[str, ...] = ()


def load(file: ModelFile) -> tuple[Signature, Step]:
    """The signature of a SavedModel that was chosen, and the step that runs it.

    Raises:
        ModelError: It does not load, has no such signature, or has an input or output that is not rows.
    """
    graph, note = _choose_graph(file)
    loaded = _load(file, graph, has_tags=note is not None)
    names = list(loaded.signatures)
    chosen, remark = _choose(file, names, has_call=_is_callable(loaded))
    entry = _entry(loaded, chosen, graph)
    given = Given(file.constants, _defaults(graph, chosen))
    given.check(entry.specs)
    made = arguments(entry.specs, given)
    signature = _describe(entry, made, loaded)
    others = tuple(_describe_other(loaded, name, graph) for name in names if name != chosen)
    notes = tuple(text for text in (note, remark) if text is not None)
    signature = replace(signature, others=others, notes=(*notes, *signature.notes))
    _check_outputs(entry, signature, file)
    return signature, _step(file, loaded, entry, made, signature)


def _step(file: ModelFile, loaded: Any, entry: _Entry, made: Arguments, signature: Signature) -> Step:
    scale = scaler(file, signature)

    def step(tensors: dict[str, Any]) -> dict[str, Any]:
        # The loaded object owns the variables: this closure keeps it alive.
        assert loaded is not None
        return entry.call(made.make(scale(tensors)))

    return step


def _choose_graph(file: ModelFile) -> tuple[Any, str | None]:
    """The graph to load, as it is written in the file, and a note where there are several.

    A file may hold one graph for serving and one for training; tags distinguish them.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow.core.protobuf import saved_model_pb2

    path = os.path.join(file.location, "saved_model.pb")
    model = saved_model_pb2.SavedModel()
    try:
        with open(path, "rb") as opened:
            model.ParseFromString(opened.read())
    except (OSError, DecodeError) as error:
        raise ModelError("the model is damaged", received=f"{path}: {one_line(error)}") from None
    graphs = list(model.meta_graphs)
    if not graphs:
        raise ModelError("the model is damaged", received=f"{path} holds no graph")
    chosen = min(graphs, key=lambda graph: _fitness(list(graph.meta_info_def.tags)))
    if len(graphs) == 1:
        return chosen, None
    tags = "tagged " + ", ".join(chosen.meta_info_def.tags) if chosen.meta_info_def.tags else "without a tag"
    return chosen, f"of {len(graphs)} graphs in this SavedModel, the one {tags} is run"


def _fitness(tags: Sequence[str]) -> int:
    """The rank of a graph; the lowest is run: for serving, of a TF-Hub module (no tags), any other, for training."""
    if "serve" in tags:
        return 0 if "tpu" not in tags else 2
    return 1 if not tags else 4 if "train" in tags else 3


def _load(file: ModelFile, graph: Any, *, has_tags: bool) -> Any:
    damaged = (
        *(tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError),
        *(FileNotFoundError, IndexError),  # the reader of checkpoints raises these for the same reason
    )
    try:
        return tf.saved_model.load(file.location, tags=list(graph.meta_info_def.tags) if has_tags else None)
    except damaged as error:
        raise ModelError(
            "the model's variables or assets are damaged or missing",
            received=f"{file.location}: {one_line(error)}",
            hint="copy the whole folder again, with `variables/` and `assets/`",
        ) from error
    except Exception as error:
        raise ModelError("the model does not load", received=f"{file.location}: {one_line(error)}") from error


def _is_callable(loaded: Any) -> bool:
    return bool(getattr(getattr(loaded, CALL, None), "concrete_functions", ()))


def _choose(file: ModelFile, names: Sequence[str], *, has_call: bool) -> tuple[str, str | None]:
    """The signature to run, and a note where the user might have meant another."""
    wanted = file.signature
    if wanted is not None and (wanted in names or (wanted == CALL and has_call)):
        return wanted, None
    if wanted in (None, ANY_SIGNATURE) and not names and has_call:
        return CALL, "saved without signatures: the model itself is called, as for serving"
    likely = [name for name in _PREFERRED if name in names] or list(names)
    is_clear = bool(likely) and (len(names) == 1 or likely[0] in _PREFERRED)
    if wanted == ANY_SIGNATURE and likely:
        return likely[0], f"--signature chooses one of {', '.join(names)}" if len(names) > 1 else None
    if wanted is None and is_clear:
        others = ", ".join(name for name in names if name != likely[0])
        return likely[0], f"the signature {likely[0]} is run; --signature chooses {others}" if others else None
    raise ModelError(
        "the SavedModel has no such signature" if wanted else "the SavedModel has several signatures",
        received=f"--signature {wanted}" if wanted else file.location,
        allowed=", ".join([*names, *([CALL] if has_call else [])]) or "none: it was saved without signatures",
        hint="choose one with --signature NAME" if names else None,
    )


def _entry(loaded: Any, name: str, graph: Any) -> _Entry:
    return _call_entry(loaded) if name == CALL else _signature_entry(loaded, name, graph)


def _signature_entry(loaded: Any, name: str, graph: Any) -> _Entry:
    function = loaded.signatures[name]
    flat = dict(function.structured_input_signature[1])
    order = [key for key in getattr(function, "_arg_keywords", None) or flat if key in flat]
    declared = graph.signature_def[name].inputs if name in graph.signature_def else {}
    composite_inputs = composites(function, {key: flat[key] for key in order}, declared, loaded)
    parts = {key: composite.parts for key, composite in composite_inputs.items()}
    whole = {part: key for key, some in parts.items() for part in some}
    specs = {whole.get(key, key): composite_inputs[whole[key]].spec if key in whole else flat[key] for key in order}
    # The order that a file gives differs from one process to the next.
    outputs = dict(sorted(function.structured_outputs.items()))

    def call(values: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for key, value in values.items():
            if key in parts:
                given |= dict(zip(parts[key], tf.nest.flatten(value, expand_composites=True), strict=True))
            else:
                given[key] = value
        answers = function(**given)
        return {name: answers[name] for name in outputs}

    placeholders = tuple(tensor.op.name for tensor in function.inputs[: len(order)])
    return _Entry(
        name,
        function,
        specs,
        outputs,
        call,
        placeholders=placeholders if len(placeholders) == len(specs) == len(order) else (),
    )


def _call_entry(loaded: Any) -> _Entry:
    called = getattr(loaded, CALL)
    function = pick(called.concrete_functions)
    arguments_, keywords = structure = function.structured_input_signature
    tensors: dict[str, TensorLeaf] = leaves(structure, "input")
    outputs = leaves(function.structured_outputs, "output")

    def call(values: dict[str, Any]) -> dict[str, Any]:
        args, kwargs = rebuilt((arguments_, keywords), [values[name] for name in tensors])
        answer = called(*args, **kwargs)
        return {name: leaf.value for name, leaf in leaves(answer, "output").items()}

    is_list = isinstance(function.structured_outputs, (list, tuple))
    kind = "dict" if isinstance(function.structured_outputs, Mapping) else "list" if is_list else "single"
    placeholders = tuple(tensor.op.name for tensor in function.inputs[: len(tensors)])
    specs = {name: leaf.value for name, leaf in tensors.items()}
    return _Entry(CALL, function, specs, {name: leaf.value for name, leaf in outputs.items()}, call, kind, placeholders)


def _defaults(graph: Any, name: str) -> dict[str, Any]:
    """The default values, in a graph of TensorFlow 1, of inputs that need not be fed."""
    if name not in graph.signature_def:
        return {}
    nodes = {node.name: node for node in graph.graph_def.node}
    defaults: dict[str, Any] = {}
    for key, info in graph.signature_def[name].inputs.items():
        node = nodes.get(info.name.partition(":")[0])
        if node is None or node.op != "PlaceholderWithDefault":
            continue
        source = nodes.get(node.input[0].partition(":")[0])
        if source is not None and source.op == "Const":
            defaults[key] = tf.make_ndarray(source.attr["value"].tensor).tolist()
    return defaults


def _describe(entry: _Entry, made: Arguments, loaded: Any) -> Signature:
    return Signature(
        made.inputs,
        tuple(output_spec(name, spec) for name, spec in entry.outputs.items()),
        structure=entry.structure,
        fixed_batch=made.fixed_batch,
        name=entry.name,
        parameters=_parameters(loaded, entry.function),
        writer=f"TensorFlow {getattr(loaded, 'tensorflow_version', None) or 'unknown'}",
        examples=_examples(entry),
        notes=made.notes,
    )


def _describe_other(loaded: Any, name: str, graph: Any) -> Signature:
    """The description of a signature that was not chosen. It is only shown, so its problems raise no error."""
    try:
        entry = _entry(loaded, name, graph)
        made = arguments(entry.specs, Given(defaults=_defaults(graph, name)), is_described_only=True)
    except ModelError as error:
        return Signature((), (), name=name, notes=(error.problem,))
    return _describe(entry, made, loaded)


def _examples(entry: _Entry) -> dict[str, Any]:
    """The inputs that are serialized records."""
    texts = {
        placeholder: name
        for placeholder, (name, spec) in zip(entry.placeholders, entry.specs.items(), strict=False)
        if spec.dtype.name == "string" and spec.shape.rank in (1, None)
    }
    try:
        return dict(parsed_features(entry.function.graph.as_graph_def(), texts)) if texts else {}
    except ValueError:  # a graph of more than 2 GB cannot be looked through
        return {}


def _parameters(loaded: Any, function: Any) -> int | None:
    variables = list(getattr(loaded, "variables", None) or ()) or list(getattr(function, "variables", ()))
    shapes = [variable.shape for variable in variables if variable.shape.is_fully_defined()]
    return sum(math.prod(shape.as_list()) for shape in shapes) or None


def _check_outputs(entry: _Entry, signature: Signature, file: ModelFile) -> None:
    """Refuse outputs whose declared length is fixed: they are not rows, even if a batch happens to be as long."""
    wanted = file.answers.outputs if file.answers is not None else ()
    for name, spec in entry.outputs.items():
        length = spec.shape[0] if spec.shape.rank else None
        if length is not None and signature.fixed_batch is None and (not wanted or name in wanted):
            others = [other for other in entry.outputs if other != name]
            raise ModelError(
                "an output of the model does not have one row for each row of the input",
                received=f"{name}: shape {tuple(spec.shape)}, whatever the batch",
                hint=f"leave it out: --outputs {','.join(others)}" if others else None,
            )
