"""Questions with exact answers about small filings of our own: what a lower precision must still get right.

What it is for: items to be scored by likelihood. Each filing has a table of six lines in two years and four dated facts
about four companies; five items ask for a figure of this year, one of the year before, a sum or difference of two
figures, a company and a date. Every item has four options of one kind, one of them right, in random places, so chance
is one in four. Wrong options of all but the sums stand in the filing too: nothing is right for being there.
What it refuses: nothing is copied from anybody, nothing is true. Names come from the grammar of `finance`; text and
items are this project's own, under its licence.
The rule it keeps: a seed decides everything, the first items stay the same when more are asked for.

>>> items(5, seed=1) == items(10, seed=1)[:5], [item.kind for item in items(5, seed=1)]
(True, ['this year', 'year before', 'arithmetic', 'entity', 'date'])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from lib.measure.finance import GRAMMAR, Writer

OPTIONS = 4
CHANCE = 1 / OPTIONS
LINES = ("net revenue", "operating profit", "free cash flow", "net debt", "order intake", "tax expense", "depreciation",
         "rental income", "fee income", "energy cost", "pension cost", "lease expense")
SHOWN = 6           # lines of one table


@dataclass(frozen=True)
class Item:
    """One question. `document` is the filing it is about; the options continue `question` word by word."""

    kind: str
    document: str
    question: str
    options: tuple[str, ...]
    answer: int             # place of the right option


def items(count: int, seed: int) -> list[Item]:
    """Write so many items, five to a filing, kinds in turn."""
    random, writer = Random(seed), Writer(seed)
    found: list[Item] = []
    while len(found) < count:
        found += _filing(random, writer)
    return found[:count]


def _filing(random: Random, writer: Writer) -> list[Item]:
    year = random.randrange(2008, 2032)
    names = random.sample(LINES, SHOWN)
    # Figures of one table differ from each other and have three digits each, so that length tells nothing.
    figures = random.sample(range(100, 1000), 2 * SHOWN)
    now, before = dict(zip(names, figures[:SHOWN], strict=True)), dict(zip(names, figures[SHOWN:], strict=True))
    filer, buyer, seller, auditor = _different(4, lambda: writer["company"])
    dates = _different(4, lambda: f"{random.randrange(1, 29)} {random.choice(GRAMMAR['month'])} {year + 1}")
    unit, currency = writer["segment"], writer["currency"]
    table = "\n".join(f"{name}: {now[name]} in {year}, {before[name]} in {year - 1}" for name in names)
    document = (
        f"Annual report of {filer}, {currency} million.\n{table}\n"
        f"{buyer} bought the {unit} unit on {dates[0]}. {seller} sold it. {auditor} audited the accounts and signed on "
        f"{dates[1]}. The dividend of {filer} is payable on {dates[2]}. Its credit facility falls due on {dates[3]}."
    )
    one, two, three, four = random.sample(names, 4)
    apart = abs(now[three] - now[four])
    total = random.random() < 0.5 or apart < 10         # a difference of one digit has too few neighbours
    right = now[three] + now[four] if total else apart
    asked = (f"What are {three} and {four} together in {year}?" if total
             else f"By how much do {three} and {four} differ in {year}?")
    roles = {f"Which company bought the {unit} unit?": buyer, f"Which company sold the {unit} unit?": seller,
             "Which company audited the accounts?": auditor}
    days = {f"When was the {unit} unit bought?": dates[0], "When were the accounts signed?": dates[1],
            "When is the dividend payable?": dates[2], "When does the credit facility fall due?": dates[3]}
    who, when = random.choice(list(roles)), random.choice(list(days))
    others = [str(value) for value in figures]
    return [
        _item(random, "this year", document, f"What was {one} in {year}?", str(now[one]), others),
        _item(random, "year before", document, f"What was {two} in {year - 1}?", str(before[two]), others),
        _item(random, "arithmetic", document, asked, str(right), _near(random, right)),
        _item(random, "entity", document, who, roles[who], [filer, buyer, seller, auditor]),
        _item(random, "date", document, when, days[when], dates),
    ]


def _item(random: Random, kind: str, document: str, asked: str, right: str, others: Sequence[str]) -> Item:
    options = [right, *random.sample([other for other in others if other != right], OPTIONS - 1)]
    random.shuffle(options)
    return Item(kind, document, f"\nQuestion: {asked}\nAnswer:", tuple(f" {option}" for option in options),
                options.index(right))


def _near(random: Random, right: int) -> list[str]:
    """Results of the same number of digits that a slip of one digit or a lost carry would give."""
    slips = [right + step for step in (-100, -20, -10, -9, -1, 1, 9, 10, 20, 100)]
    kept = [str(value) for value in slips if value > 0 and len(str(value)) == len(str(right))]
    return random.sample(kept, len(kept))


def _different(count: int, draw: Callable[[], str]) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        if (one := draw()) not in found:
            found.append(one)
    return found
