"""What a server is asked before the first level of a run, so that what would spoil every level is named before any.

Two requests with prompts of their own, neither of which enters the rows: a short one, which shows address, key, model,
stream, usage and control of the output's length, and one of the longest lengths that the study may ask, which shows
that they fit the context served. Rule: a refusal ends the launch with one paragraph; what was found stays with the run.
"""

from typing import Any

from tokenizers import Tokenizer

from lib.config import Study
from lib.engines.base import Server
from lib.errors import MeasureError
from lib.measure import drive, schedule, takings, workload
from lib.measure.clientplan import Plan, Request
from lib.measure.probe import PROBE_TEXT, PROBE_TOKENS, Probed, probe


def check(study: Study, server: Server, tokenizer: Tokenizer, run: int) -> dict[str, Any]:
    """Ask both requests.

    Returns
    -------
    connect_s, first_token_s, total_s of the short request, and `longest`: input_tokens, output_tokens and the same
    times of the other.

    Raises
    ------
    MeasureError : what is wrong with the server or with what the study asks of it.
    """
    short = _ask(study, server, PROBE_TEXT, PROBE_TOKENS)
    inputs, outputs = takings.longest(study)
    try:
        (prompt,) = workload.prompts(
            tokenizer,
            [(inputs, outputs)],
            schedule.seed_for(study.seed, "probe", 0, run, "text"),
            role="probe",
            added_tokens=server.added_tokens,
            context_tokens=study.model.context,
        )
        longest = _ask(study, server, prompt.text, outputs)
    except MeasureError as refusal:
        raise MeasureError(
            f"The longest request that this study may ask, {inputs} tokens in and {outputs} out, fails: {refusal} If "
            f"the server's context is smaller than these {inputs + outputs} tokens, enlarge it in the launch's "
            "settings or shorten the workload in study.yaml."
        ) from refusal
    return _times(short) | {"longest": {"input_tokens": inputs, "output_tokens": outputs, **_times(longest)}}


def _ask(study: Study, server: Server, text: str, tokens: int) -> Probed:
    path, _ = server.body(text, tokens)
    return probe(
        Plan(requests=(Request("probe", path, b""),), journal="", **drive.where(server)),
        path,
        lambda prompt, output_tokens: server.body(prompt, output_tokens)[1],
        server.wire,
        text=text,
        tokens=tokens,
        timeout_s=study.statistics.request_timeout_seconds,
    )


def _times(found: Probed) -> dict[str, float]:
    return {"connect_s": found.connect_s, "first_token_s": found.first_token_s, "total_s": found.total_s}
