"""The limits that no engine can beat: compute, memory and link rate at their spec-sheet peaks, with perfect
overlap.

For any model, GPU, tensor-parallel size and number format in data/, and for the computer at hand from its measured
bandwidth and matrix rate. Shares nothing with the predictions it is held against.

Rule: every quantity errs on the fast side (peak rates, no latency, weights read once per step, in-switch all-reduce,
overlap of compute, memory and link, the whole memory for weights and KV cache), so a prediction or a measurement
beyond a bound is a finding about that number, never about the bound. Model of a step: the largest of FLOP / peak,
bytes / bandwidth and all-reduce bytes / link rate, per GPU (the roofline of Williams, Waterman and Patterson, CACM
2009). Two FLOP a weight and token as in Kaplan et al. 2020; two reductions a layer as in Shoeybi et al. 2019
(Megatron-LM); grouped-query attention as in Ainslie et al. 2023. Rates: data/hardware.yaml, with its sources. What a
whole node can do (`node`) is the most over every even split of its GPUs into replicas, metric by metric.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lib.analyse import published
from lib.errors import ConfigError

ACTIVATION_BYTES = 2.0  # activations are reduced between GPUs at 16 bit


@dataclass(frozen=True)
class Model:
    """Shape of a decoder-only transformer with grouped-query attention and a gated MLP (counts, no units)."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool

    @property
    def linear_params(self) -> int:
        """Weights of the linear layers of all transformer blocks: QKV, output, gate, up, down."""
        attention = (
            self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim + self.heads * self.head_dim * self.hidden
        )
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_params(self) -> int:
        """Weights of the output head, read whole in each step that yields a token."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All weights, norms included; a tied head counts once."""
        return (
            self.linear_params
            + self.head_params * (1 if self.tied_embeddings else 2)
            + (2 * self.layers + 1) * self.hidden
        )


@dataclass(frozen=True)
class Machine:
    """What one rank of a machine can do at most: bytes, bytes/s, FLOP/s by format, link bytes/s in one direction."""

    memory_bytes: float
    memory_bytes_s: float
    linear_flop_s: float
    other_flop_s: float
    link_bytes_s: float


@dataclass(frozen=True)
class Format:
    """Bytes per linear weight, per KV-cache element and per weight of the output head."""

    weight_bytes: float
    kv_bytes: float
    head_bytes: float


@dataclass(frozen=True)
class Bound:
    """Limits of one model on `tp` ranks of one machine in one format. Build it with `bound` or `host_bound`."""

    model: Model
    machine: Machine
    format: Format
    tp: int

    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache per token over all ranks, heads not repeated."""
        m = self.model
        return 2 * m.layers * m.kv_heads * m.head_dim * self.format.kv_bytes

    def weight_bytes(self) -> float:
        """Bytes of all weights over all ranks; the input embedding at 16 bit where it is not the head itself."""
        m = self.model
        embedding = 0.0 if m.tied_embeddings else m.head_params * ACTIVATION_BYTES
        return m.linear_params * self.format.weight_bytes + m.head_params * self.format.head_bytes + embedding

    def _parts(
        self, tokens: float, pairs: float, kv_read: float, logits: float, weights: float = 1.0
    ) -> tuple[float, float, float]:
        """(compute, memory, link) seconds of a forward pass: new tokens, attended pairs, cached tokens read, logit
        rows, weight sweeps.
        """
        m, machine = self.model, self.machine
        attention_flop = 4 * m.heads * m.head_dim * m.layers * pairs
        compute = (
            2 * m.linear_params * tokens / machine.linear_flop_s
            + (2 * m.head_params * logits + attention_flop) / machine.other_flop_s
        ) / self.tp
        swept = m.linear_params * self.format.weight_bytes + m.head_params * self.format.head_bytes
        memory = (weights * swept + self.kv_bytes_per_token() * (kv_read + tokens)) / self.tp / machine.memory_bytes_s
        link = self.allreduce_bytes(tokens) / machine.link_bytes_s if self.tp > 1 else 0.0
        return compute, memory, link

    def allreduce_bytes(self, tokens: float) -> float:
        """Bytes that each rank sends to reduce `tokens` tokens: two reductions a layer.

        In-switch reduction sends (tp - 1) / tp of the activations once (the bound; NVLink SHARP); a ring sends that
        twice (Patarasuk and Yuan 2009).
        """
        m = self.model
        return 2 * m.layers * (self.tp - 1) / self.tp * tokens * m.hidden * ACTIVATION_BYTES

    def _step_s(self, parts: tuple[float, float, float]) -> float:
        return max(parts)

    def prefill_s(self, input_tokens: float, cached_tokens: float = 0.0, requests: float = 1) -> float:
        """Shortest seconds from a prompt to its first token: `input_tokens` new ones after `cached_tokens` already
        in the cache.
        """
        pairs = input_tokens * (input_tokens + 1) / 2 + input_tokens * cached_tokens
        return self._step_s(self._parts(requests * input_tokens, requests * pairs, requests * cached_tokens, requests))

    def decode_step_s(self, batch: float, context_tokens: float) -> float:
        """Shortest seconds of one step that yields one token for each of `batch` sequences of `context_tokens`
        tokens.
        """
        cached = batch * context_tokens
        return self._step_s(self._parts(batch, cached, cached, batch))

    def throughput_tok_s(
        self, input_tokens: float, output_tokens: float, concurrency: float, cached_tokens: float = 0.0
    ) -> float:
        """Most output tokens per second of a closed loop on these ranks, prefill, decode and link overlapped perfectly.

        Per `concurrency` finished requests the ranks owe all their prefill compute and at least (output_tokens - 1)
        weight sweeps.
        """
        pairs = input_tokens * (input_tokens + 1) / 2 + input_tokens * cached_tokens
        prefill = self._parts(input_tokens, pairs, 0.0, 1, weights=0.0)
        context = cached_tokens + input_tokens + output_tokens / 2
        decode = self._parts(concurrency, concurrency * context, concurrency * context, concurrency)
        steps = output_tokens - 1
        compute = concurrency * prefill[0] + steps * decode[0]
        memory = steps * decode[1]
        link = concurrency * prefill[2] + steps * decode[2]
        return concurrency * output_tokens / max(compute, memory, link)

    def kv_capacity_tokens(self, share: float = 1.0) -> float:
        """Tokens of KV cache that fit beside the weights in `share` of the memory; 0 if the weights alone do not
        fit. Both engines leave a tenth of the memory free by default, which is a setting and no bound.

        Activations and the runtime's own memory are left out, so it is an upper limit. KV heads are repeated where tp
        exceeds them.
        """
        per_rank = self.kv_bytes_per_token() / min(self.tp, self.model.kv_heads)
        free = share * self.machine.memory_bytes - self.weight_bytes() / self.tp
        return max(0.0, free / per_rank)

    def sessions_that_fit(self, context_tokens: float, share: float = 1.0) -> int:
        """Whole sessions of `context_tokens` tokens whose KV cache fits at once."""
        return int(self.kv_capacity_tokens(share) // context_tokens)


@dataclass(frozen=True)
class Node:
    """Limits of one model on a whole node, each the best over all even splits of its GPUs into replicas."""

    splits: tuple[tuple[Bound, int], ...]  # (limits of one replica, replicas)

    def prefill_s(self, input_tokens: float, cached_tokens: float = 0.0) -> float:
        """Shortest seconds from a prompt to its first token, in any layout; see `Bound.prefill_s`."""
        return min(bound.prefill_s(input_tokens, cached_tokens) for bound, _ in self.splits)

    def decode_step_s(self, batch: float, context_tokens: float) -> float:
        """Shortest seconds of a step when `batch` sequences are dealt out evenly, in any layout."""
        return min(bound.decode_step_s(max(1.0, batch / n), context_tokens) for bound, n in self.splits)

    def throughput_tok_s(
        self, input_tokens: float, output_tokens: float, concurrency: float, cached_tokens: float = 0.0
    ) -> float:
        """Most output tokens per second of a closed loop with `concurrency` requests, in any layout.

        No more requests run at once than KV cache fits at their mean length.
        """
        length, best = cached_tokens + input_tokens + output_tokens / 2, 0.0
        for bound, replicas in self.splits:
            used = min(float(replicas), concurrency)
            each = min(concurrency / used, max(1.0, bound.kv_capacity_tokens() / length))
            best = max(best, used * bound.throughput_tok_s(input_tokens, output_tokens, each, cached_tokens))
        return best

    def kv_capacity_tokens(self) -> float:
        """Tokens of KV cache on the node, in the layout that leaves most."""
        return max(replicas * bound.kv_capacity_tokens() for bound, replicas in self.splits)

    def sessions_that_fit(self, context_tokens: float) -> int:
        """Whole sessions of `context_tokens` tokens whose KV cache fits at once, in the layout that holds most."""
        return max(replicas * bound.sessions_that_fit(context_tokens) for bound, replicas in self.splits)


def _model(name: str) -> Model:
    entry = published.model_entry(name)
    return Model(**{field: entry[field] for field in Model.__dataclass_fields__})


def _format(entry: dict[str, Any]) -> Format:
    return Format(entry["weight_bytes"], entry["kv_bytes"], entry["head_bytes"])


@lru_cache(maxsize=256)
def bound(model: str, gpu: str, tp: int, precision: str) -> Bound:
    """Limits of `model` on `tp` GPUs in `precision`, by names in data/models.yaml and data/hardware.yaml.

    Raises ConfigError for a name without data (saying what exists), for a format the GPU has no matrix rate for, and
    for tp < 1.
    """
    gpu_data, precision_data = published.gpu_entry(gpu), published.precision_entry(precision)
    kind = precision_data["flops"]
    if kind not in gpu_data["flop_s"]:
        raise ConfigError(
            f"{gpu} has no {kind} matrix rate in hardware.yaml, so there is no bound for '{precision}'; "
            f"it has {', '.join(gpu_data['flop_s'])}."
        )
    if tp < 1:
        raise ConfigError(f"tensor-parallel size {tp} is impossible; it is a count of GPUs, at least 1.")
    machine = Machine(
        gpu_data["memory_bytes"],
        gpu_data["memory_bytes_s"],
        gpu_data["flop_s"][kind],
        gpu_data["flop_s"]["bf16"],
        gpu_data["link_bytes_s"],
    )
    return Bound(_model(model), machine, _format(precision_data), tp)


@lru_cache(maxsize=64)
def node(model: str, gpu: str, gpus: int, precision: str) -> Node:
    """Limits of `model` on a node of `gpus` GPUs in `precision`, whatever the layout; ConfigError as in `bound`, and
    where the weights fit in no layout.
    """
    splits = [(bound(model, gpu, tp, precision), gpus // tp) for tp in range(1, gpus + 1) if gpus % tp == 0]
    held = tuple((limit, replicas) for limit, replicas in splits if limit.kv_capacity_tokens() >= 1)
    if not held:
        raise ConfigError(
            f"the weights of {model} in {precision} do not fit on {gpus} x {gpu}, so no layout has a bound; "
            "ask for more GPUs or a smaller format."
        )
    return Node(held)


def host_bound(
    model: str, precision: str, bandwidth_bytes_s: float, flop_s: float, memory_bytes: float = float("inf")
) -> Bound:
    """Limits of `model` in `precision` on one computer, from its measured memory bandwidth (bytes/s) and matrix
    rate (FLOP/s).

    The measured rates are the best this study's probe reached, not the hardware's peak, and a small model may live in
    the caches: a result above this bound says first that the probe was too slow for it.
    """
    if not (bandwidth_bytes_s > 0 and flop_s > 0):
        raise ConfigError(
            f"a bound needs a measured bandwidth and matrix rate above zero, got {bandwidth_bytes_s} "
            f"bytes/s and {flop_s} FLOP/s; "
            "run the probe again."
        )
    machine = Machine(memory_bytes, bandwidth_bytes_s, flop_s, flop_s, float("inf"))
    return Bound(_model(model), machine, _format(published.precision_entry(precision)), 1)
