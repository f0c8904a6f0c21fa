"""The verdicts in a page of results, as its panel shows them."""

from __future__ import annotations

import json
from typing import Any


def records(text: str) -> list[dict[str, Any]]:
    """The records in the text of the element ``records``: of each key distinct values, and a place among them for each."""
    columns = json.loads(text)
    count = len(columns["law"][1])
    return [{key: values[places[number]] for key, (values, places) in columns.items()} for number in range(count)]
