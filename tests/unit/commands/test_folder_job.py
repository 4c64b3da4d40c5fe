"""The job behind a call: what it refuses before anything is opened."""

from __future__ import annotations

import pytest

from penstock.commands.folder_job import make_task
from penstock.errors import InputError
from penstock.options.records import make_options


class Rows:
    """As Ray's own: anything that is asked of it is an AttributeError."""

    __module__ = "ray.data.dataset"


def test_dataset_of_ray_is_refused_on_a_cluster_before_it_is_executed() -> None:
    with pytest.raises(InputError, match=r"(?s)cannot be read on other machines.*ray\.data\.Dataset"):
        make_task("model.keras", Rows(), "out", make_options({"engine": "ray"}))
