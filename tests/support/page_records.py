"""The verdicts in a page of results, as its panel shows them."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any


def records(text: str) -> list[dict[str, Any]]:
    """The records in the text of the element ``records``: of each part distinct values, and a place among them for each."""
    columns = json.loads(gzip.decompress(base64.b64decode(text)))
    parts = zip(*([values[place] for place in places] for values, places in columns), strict=True)
    return [{key: value for part in record for key, value in part.items()} for record in parts]
