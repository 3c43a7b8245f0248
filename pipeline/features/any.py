"""The kinds of features. To add one, add a file to this folder and a line here."""

from __future__ import annotations

from pipeline.features.bucket import Bucket
from pipeline.features.calendar import Calendar
from pipeline.features.cross import Cross
from pipeline.features.lookup import Lookup
from pipeline.features.rare import Rare
from pipeline.features.standardize import Standardize
from pipeline.settings import tagged

KINDS = (Bucket, Calendar, Cross, Lookup, Rare, Standardize)
AnyFeature = tagged(Bucket | Calendar | Cross | Lookup | Rare | Standardize, "kind")
