"""The ladder explorer of the results page: rows of committed records, and published rows in groups of their own.

It reads rows and never mixes the two kinds: a group is measured or published as a whole, and says by whom.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from speedlab.publishing.facts import device_title
from speedlab.publishing.tables import Row, by_ladder, rung_title
from speedlab.publishing.touch import section
from speedlab.records.published import published_rows

PUBLISHED = (("nine-steps", "A100", None), ("six-steps", "A100", None), ("six-steps", "A100", "karpathy"),
             ("six-steps", "T4", None))  # fmt: skip


def explorer(rows: list[Row]) -> str:
    """The section of the results page. rows: those of `report_rows`, of committed records."""
    return section(
        "ladder-explorer", "Compare the steps", explorer_data(rows), otherwise="The tables below hold the same numbers."
    )


def explorer_data(rows: list[Row]) -> dict[str, Any]:
    """{"groups": [...]}: each a card, a ladder, whether it is published, its source, and rows in the ladder's order."""
    measured = [_measured_group(group) for group in by_ladder(rows)]
    return {"groups": [*measured, *_published_groups(PUBLISHED)]}


def _measured_group(group: list[Row]) -> dict[str, Any]:
    first = group[0]
    return {
        "card": device_title(first["device"]), "ladder": first["ladder"], "published": False, "url": None,
        "source": f"torch {first['torch']}, profile {first['profile']}, session {first['session']}",
        "rows": [_measured_row(row) for row in group],
    }  # fmt: skip


def _measured_row(row: Row) -> dict[str, Any]:
    steps, reserved = row["step_ms_median"], row["peak_reserved_bytes"]
    return {
        "title": rung_title(row["ladder"], row["rung"]),
        "reason": None if row["status"] == "measured" else row["status"].replace("_", " "),
        "tokens_per_s": row["tokens_per_s"],
        "step_ms": steps,
        "ms_per_1000_tokens": row["tokens_per_s"] and 1e6 / row["tokens_per_s"],
        "reserved_gib": reserved and reserved / 2**30,
        **{name: row[name] for name in (
            "speedup_total", "speedup_total_clear", "speedup_step", "speedup_step_clear",
        )},
    }  # fmt: skip


def _published_groups(wanted: Iterable[tuple[str, str, str | None]]) -> list[dict[str, Any]]:
    groups = []
    for ladder, card, source in wanted:
        rows = published_rows(ladder, card=card, source=source)
        origin = rows[0].source
        shown, before = [], None
        for row in rows:
            several = f" ({row.gpus} GPUs)" if row.gpus > 1 else ""
            shown.append(
                {
                    "title": rung_title(ladder, row.rung) + several, "reason": None, "tokens_per_s": row.tokens_per_s,
                    "step_ms": row.step_ms, "ms_per_1000_tokens": 1e6 / row.tokens_per_s,
                    "reserved_gib": row.reserved_gib, "speedup_total": row.tokens_per_s / rows[0].tokens_per_s,
                    # Published figures have no spread, so nothing can be called unclear.
                    "speedup_step": before and row.tokens_per_s / before,
                }
            )  # fmt: skip
            before = row.tokens_per_s
        groups.append(
            {
                "card": f"{card}, published{' (another account)' if source else ''}", "ladder": ladder,
                "published": True, "url": origin.url, "rows": shown,
                "source": "; ".join(part for part in (
                    origin.title, origin.hardware, origin.torch and f"torch {origin.torch}", origin.statistic) if part),
            }
        )  # fmt: skip
    return groups
