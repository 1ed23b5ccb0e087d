"""The judgement of a run of Keras's tests, on made-up outcomes."""

import json

import pytest

pytest.importorskip("rich", reason="rich is in the extra 'conformance'")
from tests.conformance.verdict import Verdict  # noqa: E402

RULES = """
[[skips]]
why = "sparse"
reasons = [".*sparse.*"]
[[absent]]
why = "sparse"
ids = [".*_sparse"]
[[exclusion]]
id = "m.T::test_excluded"
reason = "r"
instead = "i"
"""


@pytest.fixture
def judge(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)

    def run(outcomes, ids=(), whole=True, backend="ocl"):
        tests = {f"m.T::{name}": {"outcome": o, "seconds": 1.0, "text": text} for name, (o, text) in outcomes.items()}
        (tmp_path / "run.json").write_text(json.dumps({"seconds": 1, "kernels": 2, "device": "d", "tests": tests}))
        verdict = Verdict.of(tmp_path / "run.json", backend, "3", tmp_path / "rules.toml")
        verdict.compare([f"m.T::{i}" for i in ids], whole)
        return verdict

    return run


def test_all_well(judge):
    outcomes = {"test_a": ("passed", ""), "test_excluded": ("failed", "E x"), "test_s": ("skipped", "Skipped: needs sparse tensors")}
    assert judge(outcomes, ["test_a", "test_excluded", "test_s", "test_b_sparse"]).holds()


@pytest.mark.parametrize(
    ("outcomes", "ids", "says"),
    [
        ({"test_a": ("failed", "line\nE  ValueError: bad")}, [], "failed: ValueError: bad"),
        ({"test_excluded": ("passed", "")}, [], "remove its exclusion"),
        ({"test_a": ("skipped", "Skipped: because")}, ["test_a"], "was skipped: because"),
        ({"test_a": ("passed", "")}, ["test_b"], "did not run"),
    ],
)
def test_what_is_wrong(judge, outcomes, ids, says):
    verdict = judge(outcomes, ids)
    assert not verdict.holds() and says in verdict.wrong[0][1]


def test_a_part_of_the_tests_need_not_hold_all(judge):
    assert judge({"test_a": ("passed", "")}, ["test_b"], whole=False).holds()


def test_skips_outside_the_list_are_nobodys_concern(judge):
    assert judge({"test_a": ("skipped", "Skipped: because")}).holds()


def test_other_backends_have_no_exclusions(judge):
    assert not judge({"test_excluded": ("failed", "E x")}, backend="tensorflow").holds()


def test_report(judge, tmp_path, capsys):
    verdict = judge({"test_a": ("passed", ""), "test_b": ("failed", "E bad")})
    verdict.write(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["tests"]["m.T::test_b"]["outcome"] == "failed"
    verdict.show()
    assert "1 passed, 1 failed, 0 skipped, 0 excluded" in capsys.readouterr().out
