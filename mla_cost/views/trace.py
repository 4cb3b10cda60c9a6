"""A time line as a file that chrome://tracing and ui.perfetto.dev open.

The format is Chrome's: "Trace Event Format", JSON Object Format, complete events (ph X) and metadata (ph M); times in
microseconds. Its document is linked from perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mla_cost.results import TraceSlice

STREAMS = ("device", "links")


def trace_json(slices: Iterable[TraceSlice]) -> str:
    """The text of the file: a process for every stage, a thread for every stream."""
    events: list[dict[str, Any]] = []
    slices = list(slices)
    for stage in sorted({each.stage for each in slices}):
        events.append({"ph": "M", "name": "process_name", "pid": stage, "tid": 0, "args": {"name": f"stage {stage}"}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": stage, "tid": at, "args": {"name": stream}}
            for at, stream in enumerate(STREAMS)
        ]
    events += [
        {
            "ph": "X",
            "name": each.name,
            "cat": each.stream,
            "pid": each.stage,
            "tid": STREAMS.index(each.stream),
            "ts": 1e6 * each.start,
            "dur": 1e6 * each.seconds,
            "args": dict(each.told),
        }
        for each in slices
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
