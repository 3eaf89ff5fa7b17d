"""A level's id in words, and which of the page's tables it belongs to.

Rule: the id is all that is read, for it says all that sets a load apart (`lib.loads.Level.id`). Refused: nothing.
"""

import re

from lib import loads


def words(level: str) -> str:
    """Put a level's id in words.

    >>> words("closed-8"), words("poisson-1.5"), words("gamma-1-cv2")
    ('8 at once', '1.5 requests a second', '1 request a second, gaps of cv 2')
    >>> words("closed-8-think-2-burst"), words("sessions-4"), words("trace-open"), words("closed-50-on-calls")
    ('8 at once from the first moment, pausing 2 s', '4 sessions', 'the trace open', '50 at once, on calls')
    >>> words("closed-4-lora-8-zipf")
    '4 at once over 8 adapters, some asked more'
    """
    kind, _, rest = level.partition("-")
    if kind == "trace":
        return f"the trace {rest}"
    size, *more = rest.split("-")
    said = {
        "closed": f"{size} at once",
        "sessions": f"{size} session{'s' if size != '1' else ''}",
    }.get(kind, f"{size} request{'s' if size != '1' else ''} a second")
    said += " from the first moment" if "burst" in more else ""
    said += ", evenly" if kind == "constant" else ""
    said += f", gaps of cv {more[0].removeprefix('cv')}" if kind == "gamma" else ""
    exactly = "exactly " if "constant" in more else ""
    said += f", pausing {exactly}{more[more.index('think') + 1]} s" if "think" in more else ""
    if "lora" in more:
        count = more[more.index("lora") + 1]
        said += f" over {count} adapter{'s' if count != '1' else ''}" + (", some asked more" if "zipf" in more else "")
    return said + (f", on {more[more.index('on') + 1]}" if "on" in more else "")


def is_open(level: str) -> bool:
    """Whether its requests come when they are due, whatever the server does."""
    return level.partition("-")[0] in loads.OPEN


def is_session(level: str) -> bool:
    """Whether it holds conversations of several turns."""
    return level.startswith("sessions-")


def no_rung(level: str) -> bool:
    """Whether it is a closed loop that capacity is not read from: sessions, clients who pause, a burst at the start."""
    return bool(re.match("sessions-|closed-[0-9]+-", level))
