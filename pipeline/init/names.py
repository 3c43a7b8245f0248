"""Words in column names, and the roles they suggest for whole numbers."""

from __future__ import annotations

import re

from pipeline.prepare.schema import Role

THINGS = (
    "user|item|product|ad|campaign|device|site|app|page|shop|store|movie|video|song|brand|query|session|cookie|client|"
    "customer|visitor|publisher|advertiser|creative|banner|channel|zone|placement|category|cat|zip|city|country|region"
)
ID_WORDS = re.compile(
    rf"(^|_)({THINGS}|id|ids|code|type|categories|hash|key|os|ip|model|state|genre|domain|day|weekday|hour|slot|pos|"
    r"position|level|group|segment|url|browser|carrier|gender|language)(s?)($|_|\d)"
)
"""Words in names of columns whose whole numbers are identifiers, not amounts."""
AMOUNT_WORDS = re.compile(
    r"(^|_)(count|cnt|num|number|price|amount|sum|age|duration|len|length|size|ms|score|rate|days|hours|weeks|minutes|"
    r"seconds|gain|gains|loss|losses|wage|cost|total|avg|mean|clicks|views|visits|impressions|sales|revenue|income|"
    r"balance|quantity|qty|percent|pct|ratio|distance|bid)($|_)"
)
"""Words in names of columns whose whole numbers are amounts. If a name has words of both kinds, the last one decides,
as in item_price and age_level. A name that matches PER is also an amount, as wage_per_hour."""
NUMBER_WORDS = re.compile(r"^(num|number)s?$")
"""Amount words that may denote an identifier at the end of a name, as in model_number."""
PER = re.compile(r"(^|_)per_")
THING_WORDS = re.compile(rf"(^|_)({THINGS})s?($|_)")
INDEXES = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""Names that pandas gives the number of a row: in Parquet, and when it reads text that it has written."""
WEIGHT_WORDS = re.compile(r"(^|_)weights?($|_)")
TIME_WORDS = re.compile(r"(^|_)(time|timestamp|ts|date|datetime|time_ms|at)s?($|_)")
OUTCOME_WORDS = re.compile(
    r"(^|_)(label|click|clicked|target|conversions?|converted|purchased?|bought|orders?|ordered|paid|refunded|outcome|"
    r"response|result|rating|rated|likes?|liked|comments?|follow|forward|shared?|installed|attributed|play|played|"
    r"watch|watched|dwell|stay|stayed|completed|finished|viewed|churned|defaulted|fraud)($|_)"
)
"""Words in names of columns that describe events after an example was shown."""
BORDERS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])|[\W_]+")
"""Word boundaries within a name: changes of case, digits, and characters that are not letters."""
GLUED = re.compile(rf"(?<![a-z])({THINGS}|post|u|uu|gu|p|c|s|t|g|v)(id|code|key|hash)(s?)(?![a-z])")
"""Compound words, such as deviceid; not words that merely end alike, such as paid or grid."""


def words_of(name: str) -> str:
    """Words of a name in lower case, joined by `_`: user_id for userId, UserID, user-id and userid."""
    cut = "_".join(word for word in BORDERS.split(name.replace("IDs", "Ids")) if word)
    return GLUED.sub(r"\1_\2\3", cut.lower())


def role_by_name(name: str) -> Role | None:
    """Role that a name suggests for a column of whole numbers; None if unclear."""
    words = words_of(name)
    last = words.rstrip("0123456789_").rpartition("_")[2]
    if PER.search(words) or (AMOUNT_WORDS.search(last) and not NUMBER_WORDS.search(last)):
        return "number"
    if ID_WORDS.search(words):
        return "category"
    return "number" if AMOUNT_WORDS.search(words) else None
