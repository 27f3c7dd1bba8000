"""How summaries repeat themselves: Self-BLEU, repeated 4-grams, ROUGE, and a text each (paper, Figures 6 and 7).

python -m experiments.fig6_7
python -m experiments.fig6_7 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import SELF_BLEU
from experiments.tables import Shown, metrics, model_name
from h2o_lab.results import load_samples

METRICS = ("self_bleu", "repetition", "rouge1", "rouge2", "rougeL")
NOTE = (
    "Self-BLEU is BLEU-4 of each text against the others (the paper does not give its n-gram order and smoothing), "
    "repetition the share of a text's 4-grams that occurred in it before."
)


def table(frame: pd.DataFrame) -> Shown:
    """Metrics across, and below the first document's summaries."""
    title = "Summaries: repetition and quality"
    return metrics(frame, title, METRICS, SELF_BLEU, note=NOTE, texts=_texts(frame))


def _texts(frame: pd.DataFrame) -> str:
    """The first document's reference, and what each policy wrote, as quotes."""
    said: dict[str, str] = {}
    for row in frame.to_dict("records"):
        first = load_samples(row["path"]).iloc[0]
        said.setdefault("reference", first["reference"])
        said[f"{model_name(row['model'])}, {row['policy']}"] = first["text"]
    quotes = [f"**{name}**\n\n> {' '.join(text.split()) or '(nothing)'}\n" for name, text in said.items()]
    return "\n".join(["\nThe first document:\n", *quotes])


EXPERIMENT = Experiment(
    "fig6_7",
    __doc__,
    table=table,
    paper=("model=llama_7b", "data=hub", "task.limit=100"),
    shows=("model", "policy", "task.num_fewshot", "budget", "budget_tokens"),
    needs=("task.kind=summarisation",),
    scored=False,
)

if __name__ == "__main__":
    main(EXPERIMENT)
