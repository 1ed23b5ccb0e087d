"""Chrome's trace event format, for https://ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import gzip
import json
from pathlib import Path

_DEVICE, _HOST = 1, 2  # the trace's processes


def write(path, device, trace):
    """Writes a trace to a file, compressed if its name ends in ".gz".

    Args:
        path: the file.
        device: the device's name, which the trace gives to the process that shows the launches; the other process is the host.
        trace: a runtime.Timeline that has ended.
    """
    path = Path(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": _events(device, trace)}, file)


def _events(device, trace):
    events, overlaps = [], dict(trace.overlaps())
    for process, name, spans in ((_DEVICE, device, trace.device_spans()), (_HOST, "host", trace.spans)):
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        threads = {thread: k for k, thread in enumerate(dict.fromkeys(span.thread for span in spans))}
        for thread, k in threads.items():
            events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": k, "args": {"name": thread}})
        for span in spans:
            start, duration = (span.start - trace.begin) * 1e-3, (span.end - span.start) * 1e-3  # microseconds
            event = {"ph": "X", "name": span.label, "pid": process, "tid": threads[span.thread], "ts": start, "dur": duration}
            if span.nbytes:
                event["args"] = {"bytes": span.nbytes}
            if span in overlaps:
                event["args"]["overlapped ms"] = overlaps[span] * 1e-6
            events.append(event)
    return events
