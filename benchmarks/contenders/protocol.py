"""What a contender answers, in whatever environment it runs: nothing but torch and transformers is imported here.

A contender's file is a program that loads one model, says what it runs on, and then answers one JSON line with
another:

    {"passages": FILE, "passage": 0, "prompt_tokens": null, "tokens": 128, "k": 204}

reads the prompt of a passage and scores its continuation token by token. `FILE` holds a list of
{"prompt": [int], "continuation": [int]}. What the libraries print goes to standard error.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

Around = Callable[[PreTrainedModel], AbstractContextManager[Any]]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Contender:
    """One way to hold keys and values, for one prompt.

    Attributes:
        cache: the cache that the model is given.
        kv_bytes: bytes of the keys and values that a cache holds.
        reading: entered while the prompt is read.
        decoding: entered while the continuation is.
    """

    cache: Any
    kv_bytes: Callable[[Any], int]
    reading: Around = nullcontext
    decoding: Around = nullcontext


Build = Callable[[PreTrainedModel, int, int], Contender]
"""From the model, the number of prompt tokens and the cap k."""


def dynamic_bytes(cache: Any) -> int:
    """Bytes of keys and values in a `DynamicCache`."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def load(folder: str, attention: str) -> PreTrainedModel:
    """The model of a folder in float32 on the CPU, with one of transformers' attention implementations."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    return model.eval().requires_grad_(False)


def score(
    model: PreTrainedModel, build: Build, prompt: list[int], continuation: list[int], k: int
) -> dict[str, Any]:
    """Read a prompt, then decode the continuation one given token at a time, batch 1.

    Returns:
        Seconds of both (the last token is scored and not fed), tokens fed, the sum of the negative log-likelihoods
        of the continuation in nats, bytes of keys and values after the prompt and at the end, and bytes of memory
        that the process had resident before and at most.
    """
    contender = build(model, len(prompt), k)
    # transformers 5.24 calls `cache` what earlier ones call `past_key_values`
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    given = {name: contender.cache, "use_cache": True, "logits_to_keep": 1}
    ids = torch.tensor([prompt + continuation])
    places = torch.arange(ids.shape[1])[None]
    steps = range(len(prompt), ids.shape[1] - 1)
    before = _peak_from_here()
    with torch.inference_mode():
        start = time.perf_counter()
        with contender.reading(model):
            read = slice(0, len(prompt))
            logits = [model(ids[:, read], position_ids=places[:, read], **given).logits[0, -1]]
        prefill_seconds = time.perf_counter() - start
        kv_prompt = contender.kv_bytes(contender.cache)
        start = time.perf_counter()
        with contender.decoding(model):
            for t in steps:
                now = slice(t, t + 1)
                logits.append(model(ids[:, now], position_ids=places[:, now], **given).logits[0, -1])
        decode_seconds = time.perf_counter() - start
        peak = _peak()
        logprobs = torch.stack(logits).float().log_softmax(-1)
        nats = -logprobs.gather(1, ids[0, len(prompt) :, None]).sum().item()
    return {
        "prefill_seconds": prefill_seconds,
        "decode_seconds": decode_seconds,
        "decoded": len(steps),
        "scored": len(continuation),
        "nats": nats,
        "kv_bytes_prompt": kv_prompt,
        "kv_bytes_end": contender.kv_bytes(contender.cache),
        "resident_before": before,
        "resident_peak": peak,
    }


def serve(packages: list[str], prepare: Callable[[dict[str, Any]], tuple[PreTrainedModel, Build]]) -> None:
    """Load, say the versions of `packages`, and answer commands until the input ends.

    The program's argument is a JSON object with `model` (a folder), `threads`, and options that `prepare` knows.
    """
    with _quiet_output() as replies:
        options = json.loads(sys.argv[1])
        torch.set_num_threads(options["threads"])
        model, build = prepare(options)
        names = ["torch", "transformers", *packages]
        _say(replies, {"python": platform.python_version()} | {name: version(name) for name in names})
        for line in sys.stdin:
            _say(replies, answer(model, build, json.loads(line)))


def answer(model: PreTrainedModel, build: Build, command: dict[str, Any]) -> dict[str, Any]:
    """Score the passage that a command names."""
    passage = json.loads(Path(command["passages"]).read_text(encoding="utf-8"))[command["passage"]]
    prompt = passage["prompt"][: command["prompt_tokens"]]
    return score(model, build, prompt, passage["continuation"][: command["tokens"]], command["k"])


def _quiet_output() -> Any:
    """The standard output for replies alone: whatever else is printed goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _say(replies: Any, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def _peak_from_here() -> int:
    """Start the process's peak anew where the system lets it (Linux), and return it: what is resident now."""
    with suppress(OSError):
        CLEAR.write_text("5", encoding="ascii")
    return _peak()


def _peak() -> int:
    """Most bytes that the process had resident; on Linux since `_peak_from_here`."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
