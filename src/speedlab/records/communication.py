"""The `communication` object of a record of several processes: which values it may hold. It knows no measuring."""

from __future__ import annotations

from speedlab.records import check
from speedlab.records.check import Check

# backend: "nccl" or "gloo". gradient_bytes: averaged in a step. ring_bytes: that a GPU sends for them; ring_ms: at the
# best rate of the link. link: {bytes, ms, bus_bytes_per_s} of all-reduces alone. timeline: milliseconds of a step on
# rank 0, as `measuring.timeline.summarize` names them; null where processes share the cores.
CHECK: Check = check.optional(
    check.fields_of(
        {
            "backend": check.text,
            "gradient_bytes": check.whole(minimum=1),
            "ring_bytes": check.number(),
            "ring_ms": check.optional(check.number()),
            "link": check.list_of(check.table_of(check.number(above=True))),
            "timeline": check.optional(check.table_of(check.optional(check.number()))),
        },
    )
)
