"""Loads many models in one process, as a replica would: `python load_models.py RUNTIME CASES.json ANSWERS.npz`.

CASES is a list of {"name", "inputs": an .npz, "file": the fields of a ModelFile}. What each predicts is kept under
NAME/OUTPUT; on stdout is a JSON object with what each says of itself, or why it did not load.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from penstock.core import kinds
from penstock.core.records import Device, ModelFile
from penstock.errors import PenstockError


def main(name: str, cases: str, answers: str) -> None:
    runtime, device = kinds.runtime(name).make(), Device("cpu", 0)
    os.environ.update(runtime.environment(device, 1))
    kept: dict[str, Any] = {}
    told: dict[str, Any] = {}
    with open(cases, encoding="utf-8") as file:
        listed = json.load(file)
    for case in listed:
        fields = case["file"] | {"custom_objects": tuple(case["file"].get("custom_objects", ()))}
        try:
            replica = runtime.load(ModelFile(digest="", runtimes=(name,), **fields), device, 1)
        except PenstockError as error:
            told[case["name"]] = {"error": type(error).__name__, "message": str(error)}
            continue
        signature = replica.signature
        given = np.load(case["inputs"])
        outputs = replica.predict({spec.name: given[spec.name] for spec in signature.inputs})
        kept |= {f"{case['name']}/{output}": array for output, array in outputs.items()}
        told[case["name"]] = {"structure": signature.structure, "notes": signature.notes, "outputs": list(outputs)}
    np.savez(answers, **kept)
    print("TOLD" + json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
