"""The checks of a GPU: their command in its short form, what they measure and how right, the planning of time, failures, and the report."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from comparisons import frameworks, gpu, gpu_cases, gpu_networks, gpu_report, gpu_worker, references
from keras_ocl import runtime

FAKE = """
import json, os, sys, time
for name, precision in json.load(sys.stdin):
    print("figure: " + json.dumps({"begin": [name, precision]}), flush=True)
    if name == "crash":
        os.abort()
    if name == "hang":
        time.sleep(100)
    print("figure: " + json.dumps({"row": {"case": name, "precision": precision, "ms": 1.0, "tflops": 1.0, "error": 0.0}}), flush=True)
"""


def command(root, folder, *options, **variables):
    environment = {**os.environ, "KERAS_OCL_DEVICE": runtime.current_device().name, **variables}
    whole = [sys.executable, "-m", "comparisons.gpu", "--out", str(folder), *options]
    return subprocess.Popen(whole, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_short_form(tmp_path, root):
    units = {"KERAS_OCL_SCHEDULE": "gpu", "KERAS_OCL_MATRIX": "emulated,mma_m16n8k16"}
    process = command(root, tmp_path, "--short", "--minutes", "4", "--only", "products,tests", **units)
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    figures = gpu_report.Figures(gpu_report.read(tmp_path / "figures.jsonl"))
    assert [row["kind"] for row in figures.of("driver") if "kind" in row] == [runtime.current_device().kind]
    for case, precision in gpu_cases.cases("products", "ocl", short=True):
        row = figures.get("products", case, "ocl", precision)
        assert figures.right(row), (case, precision)
        assert (row["units"] > 0) == (precision != "float32"), "tf32 by three products of bfloat16 terms"
    verdicts = {(row["case"], row["precision"]): row["verdict"] for row in figures.of("driver") if "verdict" in row}
    assert verdicts["unit emulated", "bfloat16"] == "works" and verdicts["units", ""] == "kernels use emulated"
    assert verdicts["unit mma_m16n8k16", "all"].startswith("refused: the driver does not compile it")
    (tests,) = (row for row in figures.of("tests") if "passed" in row)
    assert tests["passed"] > 5 and tests["failures"] == 0
    text = (tmp_path / "report.md").read_text()
    assert text.strip() == output.strip() and runtime.current_device().driver_version in text
    for file in tmp_path.iterdir():
        assert str(root) not in file.read_text() and sys.prefix not in file.read_text()


def test_figures_survive_a_kill(tmp_path, root):
    process = command(root, tmp_path, "--short", "--minutes", "1", "--only", "driver")
    while "pyopencl" not in ((tmp_path / "figures.jsonl").read_text() if (tmp_path / "figures.jsonl").exists() else ""):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert gpu.main(["--report", str(tmp_path)]) == 0
    assert runtime.current_device().driver_version in (tmp_path / "report.md").read_text()


# ---- what is measured


def short_operations():
    return [(stage, *case) for stage in ("products", "operations") for case in gpu_cases.cases(stage, "ocl", short=True)]


@pytest.mark.parametrize("stage, name, precision", short_operations())
def test_operations(stage, name, precision, monkeypatch):
    monkeypatch.setattr(frameworks, "LEAST", 1e-4)
    row = gpu_worker.operation(stage, "ocl", name, precision, True)
    assert row["error"] <= gpu_cases.ERRORS[precision]
    assert row["error"] > gpu_cases.ERRORS["float32"] or gpu_cases.ERRORS[precision] < 5e-3, "16 bits are seen"
    assert 0 < row["ms"] < 1000 and row["units"] == 0


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("kind", ["product", "convolution", "input gradient", "filter gradient", "attention", "attention gradient"])
def test_other_frameworks_compute_the_same(backend, kind, monkeypatch):
    pytest.importorskip(frameworks.PACKAGES[backend])
    monkeypatch.setattr(frameworks, "LEAST", 1e-4)
    found = [o for stage in ("products", "operations") for o in gpu_cases.operations(stage, True).values() if o.kind == kind]
    arrays = gpu_worker._normal(found[0].shapes)
    for precision in ("float32", "bfloat16"):
        results = frameworks.measure(backend, kind, arrays, precision)[1]
        assert references.error(kind, arrays, results) < gpu_cases.ERRORS[precision]


@pytest.mark.parametrize("kind", ["product", "convolution", "input gradient", "filter gradient", "attention", "attention gradient"])
def test_wrong_results_are_seen(kind):
    found = [o for stage in ("products", "operations") for o in gpu_cases.operations(stage, True).values() if o.kind == kind]
    arrays = gpu_worker._normal(found[0].shapes)
    results = frameworks.measure("ocl", kind, arrays, "float32")[1]
    assert references.error(kind, arrays, results) < 1e-6
    assert references.error(kind, arrays, [1.05 * result for result in results]) == pytest.approx(0.05, rel=1e-3)
    assert references.error(kind, arrays, [np.flip(result) for result in results]) > 0.5
    assert references.error(kind, arrays, [result * np.nan for result in results]) == math.inf


def test_bf16x6_is_the_float32_that_favours_bfloat16_units():
    traits = runtime.read_record("sm_86")
    assert traits.matrix_units == ("mma_m16n8k16", "mma_m16n8k32_i8")
    first, of_bytes = traits.matrix_rates
    assert frameworks._favoured(traits).matrix_rates == (frameworks.FAVOURED * first, of_bytes)


def test_trainings_start_from_the_same_weights():
    rows = [gpu_networks.fit("ocl", "small decoder", precision) for precision in ("float32", "tf32", "mixed_bfloat16")]
    assert rows[0]["loss"] == rows[1]["loss"] != rows[2]["loss"], "the policy counts"
    assert rows[2]["loss"] == pytest.approx(rows[0]["loss"], rel=1e-2)
    for row in rows:
        assert row["steps"] == gpu_networks.STEPS[1] and 0 < row["ms"] < 1000 and row["first_step_s"] > row["ms"] / 1000


@pytest.mark.parametrize("name", [name for name, network in gpu_networks.NETWORKS.items() if not network.large])
def test_data_fits_the_networks(name, monkeypatch):
    monkeypatch.setattr(gpu_networks, "EPOCH_BYTES", 1)
    network = gpu_networks.NETWORKS[name]
    model, x, y = gpu_networks._made(network)
    assert len(x) == len(y) == gpu_networks.STEPS[0] * network.batch
    assert x.shape[1:] == model.input_shape[1:] and np.ptp(x) > 0 and np.ptp(y) > 0


# ---- time, and what goes wrong


def test_portions_of_the_time():
    weights = {"a": 1, "b": 2, "c": 1}
    assert [gpu_cases.portion(80, weights, name) for name in weights] == [20, pytest.approx(160 / 3), 80]
    assert sum(gpu_cases.WEIGHTS.values()) > 0 and list(gpu_cases.WEIGHTS) == list(gpu_cases.STAGES)


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(gpu, "WORKER", (sys.executable, str(tmp_path / "fake.py")))
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.5)
    return gpu.Run(tmp_path / "out", 1, True)


def recorded(run):
    return gpu_report.read(run.folder / "figures.jsonl")


def test_a_crash_and_a_hang_are_rows_and_the_next_goes_on(run, monkeypatch):
    monkeypatch.setattr(gpu_cases, "CASE_SECONDS", 1)
    run._cases("products", "ocl", [(name, "float32") for name in ("first", "crash", "second", "hang", "third")], 20)
    found = {row["case"]: row.get("failed", row.get("ms")) for row in recorded(run)}
    assert found == {"first": 1, "crash": "killed by SIGABRT", "second": 1, "hang": "no result after 1 s", "third": 1}


def test_failures_of_tests_are_rows(run, monkeypatch, tmp_path):
    (tmp_path / "test_some.py").write_text("def test_right():\n    pass\ndef test_wrong():\n    assert 1 == 2, 'not so'\n")
    (tmp_path / "test_other.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.setattr(gpu_cases, "SHORT_TESTS", [str(tmp_path / name) for name in ("test_some.py", "test_other.py")])
    run._tests(60)
    found = {row["case"].rpartition("/")[2]: row for row in recorded(run)}
    assert found["test_some.py::test_wrong"]["failed"].startswith("AssertionError: not so")
    assert "a_package_that_nobody_has" in found["test_other.py"]["failed"]
    assert (found["tests"]["passed"], found["tests"]["failures"]) == (1, 1) and "the end" not in found


def test_a_hang_takes_half_of_the_time_at_most(run):
    run._cases("products", "ocl", [(name, "float32") for name in ("hang", "last")], 4)
    hang, last = recorded(run)
    assert 1 < float(hang["failed"].split()[3]) < 2 and last["ms"] == 1


def test_what_there_is_no_time_for_is_said(run):
    began = time.monotonic()
    run._cases("products", "ocl", [(name, "float32") for name in ("first", "hang", "last")], 0.9)
    assert time.monotonic() - began < 5
    first, hang, rest = recorded(run)
    assert first["ms"] == 1 and "failed" in hang and rest["left_out"] == [["last", "float32"]]
    assert gpu_report.line(rest) == "all: no time for 1 cases: last (1)"


def test_a_process_is_stopped_when_the_time_is_over(run):
    ends = time.monotonic() + 0.5
    why = run._converse([sys.executable, "-c", "import time; time.sleep(60)"], {}, ends, None)
    assert why == "stopped, as the time was over" and time.monotonic() - ends < 2


def test_a_backend_that_does_not_begin_is_a_row(run, monkeypatch):
    monkeypatch.setattr(gpu, "WORKER", (sys.executable, "-c", "raise SystemExit('no driver in /opt/one/libOpenCL.so')"))
    run._cases("products", "ocl", [("first", "float32")], 20)
    (row,) = recorded(run)
    assert row["case"] == "all" and row["failed"] == "exit status 1: no driver in libOpenCL.so"


def test_a_failure_right_after_another_ends_the_process(monkeypatch, capsys):
    def rows(stage, backend, name, precision, short):
        if name.startswith("bad"):
            raise ValueError(name)
        yield {"ms": 1.0}

    names = ["bad 1", "good", "bad 2", "bad 3", "never"]
    monkeypatch.setattr(gpu_worker, "rows", rows)
    monkeypatch.setattr(gpu_worker.json, "load", lambda stream: [[name, ""] for name in names])
    gpu_worker.main("products", "ocl", "cpu", "short")
    told = [json.loads(line.removeprefix(gpu_worker.MARK)) for line in capsys.readouterr().out.split("\n") if line]
    assert [found["begin"][0] for found in told if "begin" in found] == names[:-1]
    failures = [found["row"].get("failed") for found in told if "row" in found]
    assert failures == ["ValueError: bad 1", None, "ValueError: bad 2", "ValueError: bad 3"]


def test_what_is_missing_leaves_its_time_to_others(run, monkeypatch):
    monkeypatch.setitem(frameworks.PACKAGES, "torch", "a_package_that_nobody_has")
    monkeypatch.setitem(frameworks.PACKAGES, "jax", "json")
    given = []
    monkeypatch.setattr(run, "_cases", lambda stage, backend, cases, seconds: given.append((backend, seconds)))
    run.stage("products", 50)
    assert given == [("ocl", pytest.approx(30, abs=0.1)), ("jax", pytest.approx(50, abs=0.1))]
    assert [row["skipped"] for row in recorded(run)] == ["a_package_that_nobody_has is not installed"]


def test_what_is_missing_is_a_reason(monkeypatch):
    monkeypatch.setitem(frameworks.PACKAGES, "jax", "a_package_that_nobody_has")
    assert frameworks.unavailable("jax", "gpu") == "a_package_that_nobody_has is not installed"
    assert frameworks.unavailable("ocl", "gpu") == ""


def test_paths_are_shortened():
    assert gpu.without_paths("in /home/one/x.py: 3 GB/s, '/usr/lib/a.so'") == "in x.py: 3 GB/s, 'a.so'"


# ---- the report


def figure(stage, case, backend, precision, ms, **more):
    usual = {"loss": 2.0, "first_step_s": 1.0} if stage == "fit" else {"tflops": 10 / ms, "error": 1e-7}
    return {"stage": stage, "case": case, "backend": backend, "precision": precision, "ms": ms, **usual, **more}


def verdicts(rows):
    return {mark.text.split(":")[0]: mark.verdict for mark in gpu_report.marks(gpu_report.Figures(rows)) if mark.verdict != "not measured"}


def test_marks_of_products_and_attention():
    rows = [figure("products", "p", backend, "bfloat16", ms) for backend, ms in (("ocl", 10), ("torch", 6), ("jax", 8))]
    rows += [figure("products", "p", backend, "float16", ms) for backend, ms in (("ocl", 10), ("torch", 5), ("jax", 8))]
    rows += [figure("products", "p", "ocl", "tf32", 10), figure("products", "p", "jax", "default", 5.6)]
    rows += [figure("operations", "attention, a", backend, "float16", ms) for backend, ms in (("ocl", 10), ("torch", 4.9))]
    assert verdicts(rows) == {
        "products in bfloat16": "met",
        "products in float16": "MISSED",
        "products in tf32": "met",
        "attention in float16": "MISSED",
    }
    text = gpu_report.report(rows)
    assert "| products in float16: 55 % of the best other | MISSED | 0.50 | 0.50, p | 1 |" in text
    assert "| p, bfloat16 | 1 | 1.667 | 1.25 | 0.60 | 1.0e-07 | 0% |" in text
    assert "- bfloat16: 0.60, the geometric mean of 1" in text


def test_marks_of_training():
    large, small = "ViT, 6 x 768", "LSTM"
    rows = [figure("fit", large, "ocl", "mixed_bfloat16", 10), figure("fit", large, "jax", "mixed_bfloat16", 11)]
    rows += [figure("fit", large, "ocl", "float32", 14), figure("fit", small, "ocl", "float32", 1)]
    rows += [figure("fit", small, backend, "mixed_bfloat16", ms) for backend, ms in (("ocl", 9), ("jax", 1))]
    found = [(m.verdict, round(m.mean, 2)) for m in gpu_report.marks(gpu_report.Figures(rows)) if m.text.startswith("fit")]
    assert found == [("met", 1.1), ("MISSED", 1.4)]
    rows[0]["loss"] = 2.2
    assert [m.verdict for m in gpu_report.marks(gpu_report.Figures(rows)) if m.text.startswith("fit")] == ["MISSED", "MISSED"]
    assert "| ViT, 6 x 768, mixed_bfloat16 | 10 WRONG |  | 11 |" in gpu_report.report(rows)


def test_wrong_results_reach_no_mark():
    rows = [figure("products", "p", "ocl", "bfloat16", 1, error=0.5), figure("products", "p", "torch", "bfloat16", 6)]
    assert verdicts(rows) == {"products in bfloat16": "MISSED"} and "10 WRONG" in gpu_report.report(rows)
    rows[0]["error"], rows[1]["error"] = 1e-3, math.inf
    assert verdicts(rows) == {}, "others' wrong results do not count either"


def test_nothing_measured_is_a_report():
    text = gpu_report.report([])
    assert "MISSED" not in text and text.count("not measured") == 7 and text.count("nothing measured") == 3


def test_later_figures_count_and_cut_lines_do_not(tmp_path):
    rows = [figure("products", "p", "ocl", "tf32", 2), figure("products", "p", "ocl", "tf32", 1)]
    rows.append({"stage": "products", "case": "p", "backend": "ocl", "precision": "tf32", "failed": "later"})
    path = tmp_path / "figures.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"stage": "prod')
    assert gpu_report.Figures(gpu_report.read(path)).get("products", "p", "ocl", "tf32")["ms"] == 1


def test_unknown_names_are_told(tmp_path, capsys):
    stage, folder = (["--only", "drivr"], "no stage 'drivr'; there are driver"), (["--report", str(tmp_path)], "no figures.jsonl")
    for options, message in (stage, folder):
        with pytest.raises(SystemExit, match="2"):
            gpu.main(options)
        assert message in capsys.readouterr().err
