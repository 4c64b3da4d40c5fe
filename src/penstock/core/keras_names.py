"""Which parts of Keras the description of a model may name without being trusted, and which it may not."""

COMPANIONS = frozenset({"keras_hub", "keras_cv", "keras_nlp", "keras_rs"})
"""Packages of the Keras team, beside Keras."""
NOT_MODELLING = frozenset(
    {"utils", "saving", "config", "datasets", "callbacks", "export", "visualization", "wrappers", "legacy_tf_layers"}
)
"""Parts of Keras whose functions read, write, download or configure."""
WITH_FUNCTIONS = frozenset(
    {"activations", "losses", "metrics", "initializers", "regularizers", "constraints", "ops", "backend", "nn"}
)
"""Parts of Keras whose functions a layer may be given: they are called with tensors and shapes."""
RUN_CODE = {
    "Lambda": "is a Lambda",
    "TFSMLayer": "loads a SavedModel from another place",
    "TorchModuleWrapper": "unpickles a torch module",
    "JaxLayer": "calls a Python function",
    "FlaxLayer": "calls a Python function",
    "LegacyTFLayer": "calls a Python function",
}
"""Layers that run code, and what they do."""
