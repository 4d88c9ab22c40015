# SPDX-License-Identifier: Apache-2.0
"""Lesson 14: a metric of your own, which a search of formats maximises.

A metric is a function that takes the subject (a float model and its images) and gives a function
from a model to a number in 0 .. 1. It is named ``package.module:function``; on the command line:

    bitwright search digits_cnn --weights pretrained --data digits --budget memory=20% \\
        --metric my_metrics:worst_class
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import nn

from bitwright.explore.searches import SearchRequest, run_search
from bitwright.explore.subject import Subject
from bitwright.train import evaluate


def worst_class(subject: Subject) -> Callable[[nn.Module], float]:
    """The accuracy of the class that is recognised worst, on images kept for choices."""
    images = subject.validation

    def measure(model: nn.Module) -> float:
        confusion = evaluate(model, images).confusion  # row: label, column: prediction
        return float((confusion.diagonal() / confusion.sum(axis=1)).min())

    return measure


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        request = SearchRequest(
            "digits_cnn",
            budget="memory=20%",  # of the float network's parameters and features
            out=Path(folder),
            data="digits",
            weights=Path("pretrained"),
            candidates="int2,int4,int8",
            activations="uint4,uint8",
            metric=f"{Path(__file__).stem}:worst_class",
            images=64,
        )
        report = run_search(request, lambda what, done, total: None)
    result = report.result
    print(f"{result.metric}: {result.best.accuracy:.3f}, float {result.baseline:.3f}")
    print(", ".join(f"{row['layer']} {row['format']}" for row in result.rows()))
    print(f"test accuracy of the choice: {report.final['test accuracy']:.3f}")
    assert result.metric == "worst class"
    assert result.best.accuracy > result.baseline - 0.1


if __name__ == "__main__":
    main()
