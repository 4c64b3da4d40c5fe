"""What an evaluation prints."""

from __future__ import annotations

from penstock.commands.evaluation import Evaluation


def test_loss_and_metrics_of_an_output_stand_together_behind_the_loss_of_all() -> None:
    names = ["loss", "age_mae", "age_group_accuracy", "age_loss", "age_group_loss", "other"]
    printed = str(Evaluation(3, 0, dict.fromkeys(names, 0.5))).splitlines()
    assert [line.partition(":")[0] for line in printed[:-1]] == [
        "loss", "age_loss", "age_mae", "age_group_loss", "age_group_accuracy", "other",
    ]  # fmt: skip


def test_columns_of_the_table_of_classes_have_names_above_them() -> None:
    figures = {"precision": 1.0, "recall": 0.165, "f1": 0.5, "rows": 1515}
    printed = str(Evaluation(3, 0, {}, per_class={"kind": {"ant": figures, "long name": {**figures, "rows": 2}}}))
    assert printed.splitlines()[:4] == [
        "kind: every class",
        "  class      precision  recall      F1   rows",
        "  ant           1.0000  0.1650  0.5000  1,515",
        "  long name     1.0000  0.1650  0.5000      2",
    ]


def test_what_casts_doubt_on_the_figures_comes_before_them() -> None:
    found = Evaluation(10, 0, {"loss": 0.25}, notes=("this job feeds the model otherwise",), seconds=1.0)
    assert str(found).splitlines() == ["this job feeds the model otherwise", "loss: 0.25", "10 rows in 1.0 s"]
