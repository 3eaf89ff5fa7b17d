"""Score Hugging Face folders by transformers: `score.py` says how, this loads them. Runs in the quantize environment.

A model is {"folder", "dtype", "threads"}. Weights of compressed-tensors are unpacked as they are read; activations that
the scheme rounds to 8 bits are rounded here too, so W8A8 is scored with both its errors. What differs from an engine is
the order of its sums.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import score
import torch
from torch.nn.functional import linear, pad
from transformers import AutoConfig, AutoModelForCausalLM, CompressedTensorsConfig, DynamicCache
from transformers.utils import logging


class Rounded(torch.nn.Module):  # type: ignore[misc]
    """A bfloat16 product as a unit made for it computes one: sums in float32 of bfloat16 factors, the result rounded.

    Without such a unit torch's own bfloat16 product does the same some five times slower.
    """

    def __init__(self, of: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = of.weight.detach().float()
        self.bias = None if of.bias is None else of.bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return linear(x.float(), self.weight, self.bias).to(torch.bfloat16)


def _rounds_what_comes_in(module: torch.nn.Linear) -> bool:
    """Tell whether its scheme rounds activations, which its own forward does."""
    return getattr(getattr(module, "quantization_scheme", None), "input_activations", None) is not None


class Torch:
    """One model of a folder."""

    def __init__(self, told: dict[str, Any]) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(told["threads"])
        dtype = getattr(torch, told["dtype"])
        how: dict[str, Any] = {"dtype": dtype}
        if dtype is torch.bfloat16 and hasattr(AutoConfig.from_pretrained(told["folder"]), "quantization_config"):
            how["quantization_config"] = CompressedTensorsConfig(run_compressed=False)  # unpack once: weights to round
        self._model = AutoModelForCausalLM.from_pretrained(told["folder"], **how).eval()
        if dtype is torch.bfloat16:
            for name, module in list(self._model.named_modules()):
                if type(module) is torch.nn.Linear and not _rounds_what_comes_in(module):
                    self._model.set_submodule(name, Rounded(module))
        self._cache = DynamicCache()
        self.context = int(self._model.config.max_position_embeddings)
        self.versions = {name: version(name) for name in ("torch", "transformers", "compressed-tensors")}

    def logits(self, tokens: list[int], keep: int, last: bool = False) -> np.ndarray:
        """As `score.Model` says."""
        if keep == 0:
            self._cache = DynamicCache()
        else:
            self._forget(keep)
        return np.asarray(self._read(torch.tensor([tokens]), last)[0])

    def branches(self, rows: list[list[int]], keep: int) -> list[np.ndarray]:
        """As `score.Model` says."""
        longest = max(map(len, rows))
        if longest == 0:
            return [np.empty((0, 0), np.float32) for _ in rows]
        self._forget(keep)
        self._cache.batch_repeat_interleave(len(rows))
        # What fills a short row up stands behind it, where the row's own tokens do not look.
        filled = [pad(torch.tensor(row, dtype=torch.long), (0, longest - len(row))) for row in rows]
        read = self._read(torch.stack(filled))
        self._cache.batch_select_indices(torch.tensor([0]))
        self._forget(keep)
        return [one[: len(row)] for one, row in zip(read, rows, strict=True)]

    def _forget(self, keep: int) -> None:
        extra = self._cache.get_seq_length() - keep
        if extra > 0:
            self._cache.crop(-extra)

    def _read(self, tokens: torch.Tensor, last: bool = False) -> Any:
        with torch.inference_mode():
            done = self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=int(last))
            return done.logits.float().numpy()


if __name__ == "__main__":
    score.main(Torch)
