"""Every way this study refuses, in one tree.

    StudyError            base; never raised itself. str() is one paragraph: the value, the reason, the way out.
    |-- ConfigError       the user's fault: a key, a value or a combination that cannot work
    |-- EngineError       a server that cannot be built, started, spoken to or proven to be what the config says
    |-- MeasureError      a level that cannot be measured as planned (no streaming, a client that fell behind)
    |-- RecordError       a record that is damaged, of another schema, or does not belong to this study
    `-- NoValue           a number that does not exist, with its reason; shown as missing, never as 0

A user meets these as a paragraph and exit status 2, never as a stack trace (`tell`).
"""

import sys
from collections.abc import Callable


class StudyError(Exception):
    """Base of all refusals. Carries one paragraph for the user."""


class ConfigError(StudyError):
    """A key, value or combination in config/ or on the command line that cannot work."""


class EngineError(StudyError):
    """A server that cannot be built, started, spoken to, or proven to be what the config says."""


class MeasureError(StudyError):
    """A level that cannot be measured as planned."""


class RecordError(StudyError):
    """A record that is damaged, of another schema, or does not belong to this study."""


class NoValue(StudyError):
    """A number that does not exist, with its reason."""


def tell(main: Callable[[], int | None]) -> None:
    """Run a command's `main`; turn a StudyError into its paragraph on stderr and exit status 2."""
    try:
        sys.exit(main() or 0)
    except StudyError as refusal:
        print(f"first-token-sla: {refusal}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("first-token-sla: stopped by the user; finished levels are kept.", file=sys.stderr)
        sys.exit(130)
