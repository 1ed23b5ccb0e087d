"""A process that measures nothing: `python faulty.py FAULTS REQUEST`, FAULTS: {case: "crash", "hang", "end" or an error's text} as JSON."""

import json
import os
import sys
import time

faults, request = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for section, name in request["cases"]:
    print(json.dumps({"case": [section, name]}), flush=True)
    print('{"driver": "prints"}\nand not only JSON', flush=True)
    fault = faults.get(name)
    if fault == "crash":
        os.abort()
    if fault == "hang":
        time.sleep(600)
    if fault == "end":
        print(f"in {os.path.expanduser('~')}/driver.c", file=sys.stderr)
        sys.exit(3)
    said = {"error": fault} if fault else {"result": {"best_ms": 1.0, "median_ms": 2.0, "n": 3}}
    print(json.dumps({"case": [section, name], **said}), flush=True)
