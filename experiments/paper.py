"""Numbers that the paper reports, each with its place in the paper.

Accuracies are in percent. The paper does not say which metric of lm-eval they are.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

TABLE1 = "Table 1"
TABLE2 = "Table 2"
TABLE8 = "Table 8"
TABLE9 = "Table 9"
TABLE10 = "Table 10"
TABLE11 = "Table 11"
SELF_BLEU = "Appendix C.1"


class Number(NamedTuple):
    """One number of the paper; `model` is empty where our source does not say it."""

    where: str
    model: str
    task: str
    policy: str
    value: float
    shots: int = 5
    budget: float | None = 0.2
    metric: str = "acc"


def _row(where: str, model: str, policy: str, shots: int = 5, **values: float) -> list[Number]:
    budget = None if policy == "full" else 0.2
    return [Number(where, model, task, policy, value, shots, budget) for task, value in values.items()]


NUMBERS = [
    *_row(TABLE1, "OPT-30B", "full", copa=85.00, mathqa=26.23, openbookqa=43.20, piqa=78.51, winogrande=70.24),
    *_row(TABLE1, "OPT-30B", "h2o", copa=84.00, mathqa=26.87, openbookqa=43.00, piqa=78.45, winogrande=69.06),
    *_row(TABLE1, "OPT-30B", "local", copa=48.00, openbookqa=25.20, winogrande=49.17),
    *_row(TABLE1, "OPT-66B", "full", copa=81.00),
    *_row(TABLE1, "OPT-66B", "h2o", copa=85.00),
    *_row(TABLE1, "", "full", 0, copa=76.00, winogrande=70.00),
    *_row(TABLE1, "", "full", 1, copa=76.00, winogrande=70.24),
    *_row(TABLE1, "", "h2o", copa=85.00, winogrande=71.67),
    *_row(TABLE2, "OPT-30B", "full", copa=85.00, openbookqa=43.20, piqa=78.51, winogrande=70.24),
    *_row(TABLE2, "OPT-30B", "strided", copa=50.00, openbookqa=24.60, piqa=56.20, winogrande=47.59),
    *_row(TABLE2, "OPT-30B", "strided_h2", copa=83.00, openbookqa=42.60, piqa=78.24, winogrande=69.61),
    *_row(TABLE2, "OPT-30B", "fixed", copa=61.00, openbookqa=23.80, piqa=58.60),
    *_row(TABLE2, "OPT-30B", "fixed_h2", copa=76.00, openbookqa=41.40, piqa=77.80),
    *_row(TABLE8, "", "topk", copa=80.00, piqa=76.96),
    *_row(TABLE8, "", "topk_h2", copa=82.00, piqa=77.96),
    *_row(TABLE9, "OPT-30B", "h2_only", mathqa=21.98, piqa=67.25, winogrande=47.36),
    *_row(TABLE9, "OPT-30B", "local", mathqa=20.87, piqa=55.82, winogrande=49.17),
    *_row(TABLE9, "OPT-30B", "h2o", piqa=78.45, winogrande=69.06),
    *_row(TABLE9, "OPT-13B", "h2_only", piqa=76.12),
    *_row(TABLE9, "OPT-13B", "local", piqa=54.62),
    *_row(TABLE10, "OPT-30B", "full", 10, copa=86.00),
    *_row(TABLE10, "OPT-30B", "local", 10, copa=60.00),
    *_row(TABLE11, "OPT-30B", "h2o", copa=84.00, openbookqa=43.00, piqa=78.45),
    *_row(TABLE11, "OPT-30B", "spatten", copa=82.00, openbookqa=41.90, piqa=77.06),
    Number(SELF_BLEU, "LLaMA-7B", "xsum", "full", 0.0057, 0, None, "self_bleu"),
    Number(SELF_BLEU, "LLaMA-7B", "xsum", "h2o", 0.0051, 0, 0.2, "self_bleu"),
    Number(SELF_BLEU, "LLaMA-7B", "xsum", "local", 0.0436, 0, 0.2, "self_bleu"),
]


def numbers(*where: str) -> pd.DataFrame:
    """The numbers of some tables, a row each; of a number that two of them have, the first."""
    found = pd.DataFrame([number for number in NUMBERS if number.where in where], columns=Number._fields)
    return found.drop_duplicates([name for name in Number._fields if name != "where"])
