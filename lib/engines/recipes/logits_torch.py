"""Logits of a Hugging Face folder by transformers: for `score.py`, in the quantize environment.

Weights of compressed-tensors are unpacked as they are read; activations that the scheme rounds to 8 bits are rounded
here too, so W8A8 is scored with both its errors. What differs from an engine is the order of its sums.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging


class Torch:
    """One model. `told`: folder, dtype of products and activations, threads."""

    def __init__(self, told: dict[str, Any]) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(told["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(told["folder"], dtype=getattr(torch, told["dtype"])).eval()
        self._cache = DynamicCache()
        self.context = int(self._model.config.max_position_embeddings)
        self.versions = {name: version(name) for name in ("torch", "transformers", "compressed-tensors")}

    @torch.inference_mode()
    def logits(self, tokens: list[int], keep: int) -> np.ndarray:
        """Forget all but the first `keep` tokens, read these, and return float32 logits after each (tokens x words)."""
        extra = self._cache.get_seq_length() - keep
        if keep == 0:
            self._cache = DynamicCache()
        elif extra > 0:
            self._cache.crop(-extra)
        done = self._model(input_ids=torch.tensor([tokens]), past_key_values=self._cache, use_cache=True)
        return np.asarray(done.logits[0].float().numpy())
