"""Finance-like text of our own: filings, earnings calls, news, and questions about them, from a seeded grammar.

What it is for: prompts that read like the work of an analyst, as many as a study needs, the same for every contender.
What it refuses: nothing is copied from anybody and nothing is true. Companies, people, figures and dates are invented,
a likeness is chance. It knows no tokenizer: lengths are `workload`'s business.
The rule it keeps: one `Writer` never writes a sentence twice, and every opening starts with a reference number of
eleven characters that it never uses twice. Two texts therefore differ within their first eleven bytes, which is within
their first eleven tokens under any tokenizer whose tokens hold at least one byte. The number's first digit tells the
role apart, so a warm-up text can never equal a measured one.

>>> Writer(seed=7).opening("news") == Writer(seed=7).opening("news")
True
"""

from random import Random
from typing import Literal, get_args

Kind = Literal["filing", "call", "news"]
Role = Literal["measured", "warm-up", "probe"]
Form = Literal["full", "brief", "tick"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST_DIGITS: dict[Role, str] = {"measured": "1234567", "warm-up": "8", "probe": "9"}

# Symbol -> its productions. {symbol} is expanded in turn, {Symbol} the same with a capital; the lower-case symbols that
# are not in this table are figures, drawn by the methods of Writer. The full stop ends sentences and nothing else
# before a space, so a reader of the text can split it again. Plain ASCII: tokenizers differ least there.
GRAMMAR: dict[str, tuple[str, ...]] = {
    "filing": (
        "{Money} was {amount}{aside}.",
        "{Money} {moved} {percent} percent to {amount} in {period}{reason}.",
        "{Money} of the {segment} segment was {amount}, compared with {amount} in {period}{reason}.",
        "As of {date}, {money} stood at {amount}{aside}{reason}.",
        "The group recorded {charge} of {amount} in {period}, of which {amount} belongs to the {segment} segment.",
        "Under the facility signed on {date}, {amount} was drawn at a rate of {percent} percent{purpose}.",
        "The board proposed a dividend of {currency} {cents} per share, payable on {date}{purpose}.",
        "Note {figure} sets out {money} of {amount} that {treatment}{aside}.",
        "A change of {percent} percent in {driver} would alter {money} by about {amount}{reason}.",
        "The {segment} segment held contracts worth {amount} on {date}, with {percent} percent due within {span}.",
        "On {date} the group sold its {segment} unit for {amount}, at {treatment_of} {amount}{purpose}.",
    ),
    "call": (
        "We booked {amount} of {money}{aside}.",
        "In {segment} we saw {money} move from {amount} to {amount}{reason}.",
        "{Person}, {office}: our {money} {moved} {percent} percent to {amount} in {period}{reason}.",
        "For {period} we now guide to {money} between {amount} and {amount}{reason}.",
        "We keep our outlook of {percent} percent growth in {money}, or roughly {amount}{aside}.",
        "{Person} asked whether {money} of {amount} can be held while {driver} moves by {percent} percent.",
        "Thank you, {person}; the {segment} backlog is {amount} today, and {percent} percent of it ships in {period}.",
        "Pricing added {percent} percent and volume took away {percent} percent, so {money} ended at {amount}{aside}.",
        "If {driver} stays where it was on {date}, {money} lands near {amount}{reason}.",
        "We will spend {amount} on {segment} in {period}{purpose}.",
    ),
    "news": (
        "{Company} expects {money} of {amount}{aside}.",
        "Shares of {company} {moved} {percent} percent to {currency} {cents} on {date}{reason}.",
        "{Company} reported {money} of {amount} for {period}, against {amount} that {watchers} had forecast.",
        "{Watchers} put {money} at {amount}{reason}.",
        "{Company} agreed on {date} to buy the {segment} arm of {company} for {amount}{purpose}.",
        "The {city} exchange fined {company} {amount} over {money} stated in {period}{aside}.",
        "{Company} raised {amount} through notes at {percent} percent, repayable by {date}{purpose}.",
        "{Person}, {office} of {company}, named {driver} as the largest risk to {money} of {amount}.",
        "{Company} cut {figure} posts in {segment} on {date}{reason}.",
        "Trading volume in {city} reached {amount} on {date}, {percent} percent above the mean of {span}{reason}.",
    ),
    "question": (
        "Question: what was {money} in {period}?",
        "Question: why did {money} differ from {amount} in {period}{aside}?",
        "Question: which part of {money} would change if {driver} moved by {percent} percent in {period}?",
        "Question: is a plan of {amount} for {money} in {period} supported by the text above?",
        "Question: how does {money} of the {segment} segment compare with {amount} on {date}?",
    ),
    "filing full": (
        "{company}, {report} for {period}, filed on {date}.",
        "{company} of {city} submits its {report} as of {date}.",
    ),
    "call full": (
        "{company}, earnings call of {date}, with {person}, {office}.",
        "Call of {company} on {period}, held in {city} on {date}.",
    ),
    "news full": (
        "{city}, {date}: {company} and {company} in focus after {period}.",
        "{company} in {city}, market report of {date}.",
    ),
    "brief": (
        "{company}.", "{name} in {city}.", "{name} {date}.", "{name} {trade}, {period}.",
        "{name} and {company}, {city}.", "{company} in {city}.", "{person}, {company}.",
        "{name}, {name} and {name} in {city}.",
    ),
    "tick": (
        "{name}.", "{name} {trade}.", "{city}.", "{trade}.", "{trade} in {city}.", "{company}.", "{name} in {city}.",
        "{name} and {name} {trade}.",
    ),
    "report": ("annual report", "interim report", "quarterly report", "report on current events", "capital report"),
    "money": (
        "{line}", "{line}", "adjusted {line}", "underlying {line}", "{line} before one-off items",
        "{line} at constant currency", "pro forma {line}", "recurring {line}", "{line} attributable to {segment}",
    ),
    "line": (
        "net revenue", "operating profit", "free cash flow", "gross profit", "net debt", "capital expenditure",
        "working capital", "net interest income", "fee income", "deferred revenue", "tax expense", "lease expense",
        "pension cost", "goodwill", "inventory", "research spending", "personnel expense", "credit loss provision",
        "order intake", "depreciation", "rental income", "interest expense", "hedging gain", "trade credit",
        "liquidity", "book equity", "insurance premium income", "maintenance cost", "licence income", "energy cost",
    ),
    "segment": ("{region} {business}",),
    "region": (
        "northern", "southern", "coastal", "inland", "alpine", "Baltic", "Iberian", "Andean", "Pacific", "overseas",
        "domestic", "island", "eastern", "western", "central", "cross-border",
    ),
    "business": (
        "freight", "reinsurance", "grain trading", "copper mining", "fibre networks", "card payments", "wind power",
        "leasing", "port services", "cold storage", "custody", "mortgage lending", "packaging", "rail signalling",
        "water supply", "diagnostics", "machine tools", "asset management", "specialty steel", "data hosting",
    ),
    "moved": ("rose", "fell", "climbed", "slipped", "grew", "declined", "edged up", "dropped", "gained", "eased"),
    "charge": (
        "an impairment", "a provision", "a restructuring charge", "a fair value gain", "a write-down",
        "an exceptional cost", "a translation loss", "a settlement", "a reversal",
    ),
    "treatment": (
        "is not expected to recur", "was carried forward", "is measured at fair value", "remains subject to audit",
        "is secured by property", "falls due within {span}", "was reclassified on {date}", "is held in escrow",
    ),
    "treatment_of": ("a gain of", "a loss of", "a book value of", "a premium of", "an earn-out of"),
    "driver": (
        "the policy rate", "the price of copper", "the freight index", "the euro", "the dollar", "wage inflation",
        "the price of gas", "the default rate", "the vacancy rate", "the credit spread", "the combined ratio",
        "the yield curve", "customer churn", "the price of power",
    ),
    "reason": (
        "", "", "", " because {driver} turned", ", helped by {business}", " as {driver} moved {percent} percent",
        ", mainly in {segment}", " after the sale of the {segment} unit", ", held back by {driver}",
        " while {line} {moved} by {amount}", ", although {driver} worked the other way in {period}",
        ", reflecting demand in {city} and {city}", " owing to a one-off payment of {amount} to {company}",
    ),
    "aside": (
        "", "", ", or {percent} percent of {line}", " in {period}", ", net of {amount}", ", as planned on {date}",
        ", {percent} percent above plan", ", including {amount} from {segment}",
    ),
    "purpose": (
        "", "", " to refinance notes due on {date}", " to fund {business}", " subject to approval in {city}",
        ", which lowers {line} by {amount}", " for a term of {span}", ", with {percent} percent kept in reserve",
    ),
    "watchers": (
        "analysts", "brokers in {city}", "lenders", "rating agencies", "bondholders", "investors polled on {date}",
        "economists in {city}", "dealers",
    ),
    "office": (
        "chief executive", "chief financial officer", "treasurer", "head of {business}", "chair of the audit committee",
        "controller", "head of investor relations",
    ),
    "person": ("{given} {name}",),
    "given": (
        "Ada", "Bram", "Celia", "Davor", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaja", "Luis", "Mira",
        "Nils", "Olga", "Pavel", "Rosa", "Sven", "Thea", "Umar", "Vera", "Wim", "Yara", "Zeno",
    ),
    "company": ("{name} {trade} {legal}", "{name} {trade}", "{name} and {name} {legal}"),
    "trade": (
        "Copper", "Freight", "Mutual", "Leasing", "Energy", "Foods", "Paper", "Optics", "Marine", "Cement", "Textiles",
        "Rail", "Credit", "Pharma", "Timber", "Cable", "Glass", "Software", "Steel", "Grain", "Property", "Chemicals",
    ),
    "legal": ("plc", "AG", "SA", "NV", "Ltd", "Corp", "Group", "Holding", "AB", "SpA"),
    "name": ("{onset}{middle}{coda}", "{onset}{coda}"),
    "onset": (
        "Tar", "Vel", "Kest", "Bran", "Dor", "Quil", "Fen", "Gral", "Hest", "Jor", "Lum", "Myr", "Ost", "Pell", "Rav",
        "Sel", "Thorn", "Ulm", "Wex", "Zar", "Cald", "Eld", "Ibr", "Nar",
    ),
    "middle": ("ba", "ce", "di", "fo", "ga", "hu", "ki", "le", "mo", "ni", "pa", "ru", "se", "ti", "vo", "wy"),
    "coda": (
        "lin", "mere", "vik", "stad", "dane", "holt", "rund", "quist", "ford", "wick", "ner", "brook", "gard", "lund",
        "ross", "tine", "vale", "worth", "zell", "mark",
    ),
    "city": (
        "Lisbon", "Oslo", "Zurich", "Dublin", "Vienna", "Milan", "Lyon", "Ghent", "Porto", "Riga", "Bergen", "Leeds",
        "Toronto", "Osaka", "Sydney", "Boston", "Denver", "Lima", "Bogota", "Nairobi", "Mumbai", "Seoul", "Perth",
    ),
    "period": (
        "{ordinal} quarter of {year}", "{ordinal} half of {year}", "fiscal {year}", "{month} {year}",
        "the year to {date}",
    ),
    "ordinal": ("the first", "the second"),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    ),
    "span": ("{figure} days", "{figure} weeks", "{figure} months"),
    "scale": ("million", "million", "million", "billion", "thousand"),
    "currency": ("USD", "EUR", "GBP", "CHF", "CAD", "SEK", "JPY", "AUD"),
}


class Writer:
    """One stream of text: the same seed and role give the same text, and no sentence or reference number twice.

    Parameters
    ----------
    seed : int
        Any integer.
    role : {"measured", "warm-up", "probe"}
        Texts of different roles differ in their first byte.
    """

    def __init__(self, seed: int, role: Role = "measured") -> None:
        self._random = Random(seed)
        self._first_digits = FIRST_DIGITS[role]
        self._written: set[str] = set()

    def __getitem__(self, symbol: str) -> str:
        """Expand one symbol of the grammar; what `str.format_map` calls for each slot."""
        if symbol in GRAMMAR:
            return self._random.choice(GRAMMAR[symbol]).format_map(self)
        if symbol[0].isupper():
            text = self[symbol[0].lower() + symbol[1:]]
            return text[0].upper() + text[1:]
        return str(getattr(self, f"_{symbol}")())

    def sentence(self, kind: Kind) -> str:
        """One sentence of a filing, a call or a news item, never written before."""
        return self._new(kind)

    def question(self) -> str:
        """One question about a text, never written before."""
        return self._new("question")

    def opening(self, kind: Kind, form: Form = "full") -> str:
        """First sentence of a text, led by its reference number; `brief` and `tick` are for short prompts.

        A `tick` has a shorter number, so that it can be as short as a handful of tokens.
        """
        if form == "full":
            return f"{self._reference()} {self[f'{kind} full']}"
        if form == "brief":
            return f"{self._reference()} {self['brief']}"
        while (tick := f"{self._digits(1, 9)} {self['tick']}") in self._written:
            pass
        self._written.add(tick)
        return tick

    def _new(self, symbol: str) -> str:
        while (sentence := self[symbol]) in self._written:
            pass
        self._written.add(sentence)
        return sentence

    def _reference(self) -> str:
        """Return nine digits in three groups, never used before: 700 million of them for the measured role."""
        while True:
            digits = self._digits(9, 9)
            number = f"{digits[:3]}-{digits[3:6]}-{digits[6:]}"
            if number not in self._written:
                self._written.add(number)
                return number

    def _digits(self, least: int, most: int) -> str:
        rest = self._random.randint(least, most) - 1
        return self._random.choice(self._first_digits) + "".join(self._random.choices("0123456789", k=rest))

    def _amount(self) -> str:
        return f"{self['currency']} {self._decimal()} {self['scale']}"

    def _decimal(self) -> str:
        whole = self._random.randrange(1, 10 ** self._random.choice((1, 2, 3, 3)))
        return f"{whole}.{self._random.randrange(100):02d}"

    def _percent(self) -> str:
        return f"{self._random.randrange(1, 600) / 10:.1f}"

    def _cents(self) -> str:
        return f"{self._random.randrange(1, 99)}.{self._random.randrange(100):02d}"

    def _figure(self) -> str:
        return str(self._random.randrange(2, 400))

    def _year(self) -> str:
        return str(self._random.randrange(2005, 2035))

    def _date(self) -> str:
        return f"{self._random.randrange(1, 29)} {self['month']} {self._year()}"
