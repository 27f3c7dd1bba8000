"""Tasks as lm-eval's users write them, of every kind."""

import json

from h2o_lab.config import HarnessConfig


def own_task(folder, **fields) -> HarnessConfig:
    """A YAML as lm-eval's users write it, with rows {"q", "a"} of its own."""
    rows = [{"q": f"{word} and then {i}", "a": "the sun"} for i, word in enumerate(("go", "we stay", "it is so"))]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"task": "asks", "dataset_path": "json", "test_split": "test", "doc_to_text": "{{q}}"}
    given |= {"dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}} | fields
    (folder / "asks.yaml").write_text(json.dumps(given))
    return HarnessConfig(name="asks", num_fewshot=0, include_path=str(folder))


KINDS = {
    "generate_until": {
        "output_type": "generate_until",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "loglikelihood_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_target": "{{q}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "loglikelihood": {
        "output_type": "loglikelihood",
        "doc_to_target": "{{a}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
}
