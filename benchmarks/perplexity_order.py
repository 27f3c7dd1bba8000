"""Perplexity of policies on XSum articles: does the paper's story hold on SmolLM2-135M?

    python benchmarks/perplexity_order.py --articles 2

Each article is cut to 768 tokens and scored under eviction from the first token on; the perplexity is that of
tokens 385 to 767.
"""

from __future__ import annotations

import argparse
import math

import torch
from models import console, packaged_model
from rich.table import Table

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.config import DataConfig
from h2o_lab.data import load_rows
from h2o_lab.policies import H2O, Budget, Full, H2Only, Local, Policy, Random, Streaming

LENGTH, FIRST = 768, 385
POLICIES: tuple[Policy, ...] = (H2O(), Streaming(), Local(), Random(), H2Only())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--articles", type=int, default=2)
    parser.add_argument("--data-dir", help="a folder that holds xsum/<split>.jsonl, instead of the packaged rows")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.04, 0.2, 0.6])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    source = DataConfig(source="folder", dir=args.data_dir) if args.data_dir else DataConfig(source="packaged")
    rows = load_rows("xsum", source)
    assert rows is not None
    texts = (loaded.tokenizer(row["document"]).input_ids for row in rows.splits[args.split])
    articles = [ids[:LENGTH] for ids in texts if len(ids) >= LENGTH][: args.articles]
    ids = torch.tensor(articles)

    def perplexity(policy: Policy, budget: float | None) -> float:
        cap = Budget(fraction=budget) if budget else None
        cache = EvictionCache(loaded.model.config.num_hidden_layers, policy, cap)
        with torch.inference_mode(), eviction_attention(loaded.model):
            logits = loaded.model(ids, cache=cache).logits[:, FIRST - 1 : -1].float()
        logprobs = logits.log_softmax(-1).gather(2, ids[:, FIRST:, None])
        return math.exp(-logprobs.mean().item())

    table = Table(title=f"perplexity of tokens {FIRST}–{LENGTH - 1}, {len(articles)} XSum articles")
    table.add_column("policy")
    for budget in args.budgets:
        table.add_column(f"b = {budget:g}", justify="right")
    table.add_row("full", *[f"{perplexity(Full(), None):.1f}"] * len(args.budgets))
    for policy in POLICIES:
        table.add_row(policy.name, *[f"{perplexity(policy, budget):.1f}" for budget in args.budgets])
    console.print(table)


if __name__ == "__main__":
    main()
