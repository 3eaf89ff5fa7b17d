"""The most output and the lowest cost that physics allows under an SLA, whatever the layout: the bound beside every
price.

Rule: as in lib/analyse/physics.py, everything errs on the fast side. A request's own prompt must be read within the
TTFT limit and a step with all sequences that decode at once must fit into the TPOT limit, at the shortest context they
ever have; requests that the percentile leaves out may do as they like, at the rate the node reaches without an SLA.
Refuses nothing: an SLA that no layout can keep has no bound (NaN), and no price either.
"""

from lib.analyse.arithmetic import usd_per_million_tokens
from lib.analyse.capacity import Target
from lib.analyse.physics import Bound, Node
from lib.analyse.traffic import Workload

HALVINGS = 40  # of the interval in which the largest batch is looked for


def most_tok_s(node: Node, workload: Workload, asked: Target) -> float:
    """Most output tokens per second of a node under an SLA; NaN where its limits are below what one request needs.

    Of a session at least the newest message of a turn is read, and no context is shorter than the first turn's. An
    answer left out by the percentile may be the longest: (1 - percentile) (1 + spread) of all tokens are free.
    """
    new, isl, osl = workload.turn_isl or workload.isl, workload.isl, workload.osl
    free = min(1.0, (1 - asked.percentile / 100) * (1 + workload.spread))
    best = float("nan")
    for bound, replicas in node.splits:
        if bound.prefill_s(new) > asked.ttft_ms / 1e3 or bound.decode_step_s(1, isl) > asked.itl_ms / 1e3:
            continue
        held = max(1.0, bound.kv_capacity_tokens() / (isl + osl / 2))
        kept = replicas * bound.throughput_tok_s(new, osl, _largest_batch(bound, isl, asked.itl_ms / 1e3, held))
        loose = replicas * bound.throughput_tok_s(new, osl, held)
        reached = 1 / ((1 - free) / kept + free / loose)
        best = reached if not best >= reached else best
    return best


def lowest_usd_per_million(node: Node, workload: Workload, asked: Target, node_usd_per_hour: float) -> float:
    """USD per million output tokens that no system on the node can undercut under an SLA; NaN where none keeps it."""
    most = most_tok_s(node, workload, asked)
    return usd_per_million_tokens(node_usd_per_hour, most) if most > 0 else float("nan")


def _largest_batch(bound: Bound, context: float, step_s: float, most: float) -> float:
    """Sequences, at most `most`, that a step of `step_s` can give a token each; one of them fits."""
    if bound.decode_step_s(most, context) <= step_s:
        return most
    low, high = 1.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if bound.decode_step_s(middle, context) <= step_s else (low, middle)
    return high
