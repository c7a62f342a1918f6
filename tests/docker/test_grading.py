"""The grading contract against reports written by hand, and against swebench's own code."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchrt_gym.evaluation.docker.grading import Expected, classify, find_grader
from branchrt_gym.evaluation.docker.log_parsers import LOG_PARSERS
from branchrt_gym.evaluation.docker.swebench_files import (
    SweBenchFileError,
    read_predictions,
    read_tasks,
)

START, END, CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
OWN = find_grader("own")
FIX, KEEP = "tests/a.py::fix", "tests/a.py::keep"


def package():
    return pytest.importorskip("swebench.harness.grading", reason="swebench is not installed")


def log_of(body, code=None):
    tail = "" if code is None else f"\n{CODE}: {code}\n"
    return f"+ : '{START}'\n{body}\n+ : '{END}'{tail}"


def grade(tmp_path, text, parser="parse_log_pytest", fail_only=False, grader=OWN):
    path = tmp_path / "test_output.txt"
    path.write_text(text, "utf-8", newline="")
    return grader.grade(Expected("one", (FIX,), (KEEP,), parser, fail_only), path)


@pytest.mark.parametrize(
    ("body", "code", "resolved", "applied"),
    [
        (f"PASSED {FIX}\nPASSED {KEEP}", 0, True, True),
        (f"PASSED {FIX}\nPASSED {KEEP}", None, True, True),  # a log without the exit code
        (f"XFAIL {FIX}\nSKIPPED {KEEP}", 0, True, True),  # skipped is maintained
        (f"SKIPPED {FIX}\nPASSED {KEEP}", 0, False, True),  # but fixes nothing
        (f"FAILED {FIX} - assert\nPASSED {KEEP}", 1, False, True),
        (f"PASSED {FIX}\nERROR {KEEP}", 1, False, True),
        (f"PASSED {FIX}", 0, False, True),  # what is not there has failed
        (f"PASSED {FIX}\nPASSED {KEEP}", 1, False, False),  # the runner says otherwise
        ("", 0, False, False),
        ("3 passing", 0, False, True),
        (f"PASSED {FIX}\nPASSED {KEEP}\n>>>>> Tests Errored", 0, False, False),
        (f"SKIPPED [1] {FIX}: why\nPASSED {FIX}\nPASSED {KEEP}", 0, True, True),
    ],
)
def test_an_instance_is_resolved_as_the_contract_says(tmp_path, body, code, resolved, applied):
    entry = grade(tmp_path, log_of(body, code))
    assert entry["resolved"] is resolved
    assert entry["patch_successfully_applied"] is applied
    assert ("tests_status" in entry) is applied
    assert entry["patch_exists"] and not entry["patch_is_None"]


def test_no_marks_no_verdict(tmp_path):
    assert not grade(tmp_path, f"PASSED {FIX}\nPASSED {KEEP}")["patch_successfully_applied"]


def test_results_beside_the_marks_count(tmp_path):
    assert grade(tmp_path, log_of("") + f"\nPASSED {FIX}\nPASSED {KEEP}")["resolved"]


def test_where_only_failures_are_logged_the_rest_passed(tmp_path):
    text = log_of("FAILED other\n")
    assert grade(tmp_path, text, fail_only=True)["resolved"]
    assert not grade(tmp_path, log_of(f"FAILED {KEEP}"), fail_only=True)["resolved"]


def test_names_that_break_off_are_found_where_they_are_one(tmp_path):
    path = tmp_path / "test_output.txt"
    expected = Expected("one", ("a.py::t[log(photon",), (), "parse_log_pytest")
    path.write_text(log_of("PASSED a.py::t[log(photon)]\nPASSED a.py::t[log(photon2)]", 0))
    assert OWN.grade(expected, path)["resolved"]
    path.write_text(log_of("PASSED a.py::t[log(photon)]\nFAILED a.py::t[log(photon2)]", 1))
    assert not OWN.grade(expected, path)["resolved"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x\nKilled\n", ("out_of_memory", "environment")),
        ("run: line 3: 7 Killed python", None),
        ("E  ModuleNotFoundError: No module", ("missing_module", "ambiguous")),
        ("Timeout error: 12 seconds exceeded.", ("tests_timed_out", "ambiguous")),
        ("Error response from daemon: x\nno tests ran", ("container_unavailable", "environment")),
        ("all well", None),
    ],
)
def test_logs_that_blame_the_machine(text, found):
    assert classify(text) == found


def test_each_parser_on_lines_of_its_runner():
    v2 = LOG_PARSERS["parse_log_astropy"]("\x1b[32mPASSED\x1b[0m a.py::t[x y] \na.py::u PASSED\n")
    assert v2 == {"a.py::t[x y]": "PASSED", "a.py::u": "PASSED"}
    options = LOG_PARSERS["parse_log_requests"]("PASSED a.py::t[/tmp/x/y]\nFAILED a.py::u - z\n")
    assert options == {"a.py::t[/y]": "PASSED", "a.py::u": "FAILED"}
    django = "t (a.T) ... ok\nu (a.T) ... FAIL\nv (a.T) ... skipped 'x'\nw (a.T) ... noise\nok\n"
    assert LOG_PARSERS["parse_log_django"](django) == {
        "t (a.T)": "PASSED",
        "u (a.T)": "FAILED",
        "v (a.T)": "SKIPPED",
        "w (a.T)": "PASSED",
    }
    assert LOG_PARSERS["parse_log_sympy"]("test_a ok\ntest_b F\n___ sympy/x.py:test_c ___") == {
        "test_a": "PASSED",
        "test_b": "FAILED",
        "sympy/x.py:test_c": "FAILED",
    }
    assert LOG_PARSERS["parse_log_seaborn"]("a.py::t PASSED [1%]\nFAILED a.py::u x\n") == {
        "a.py::t": "PASSED",
        "a.py::u": "FAILED",
    }


WORDS = """PASSED FAILED SKIPPED ERROR XFAIL PASSEDX a.py::t a.py::t[x [/p/q] [//p] ] [ [1] ok OK
u * test_a FAIL: MouseButton.LEFT"""
LINES = (
    *(" ", " ", " - ", "\n", "\n", "\t", "\r\n", "\r", "\x1b[32m", "\u2028", " E", " F", " ok"),
    *(" ... ok", " ... FAIL", " ... ERROR", " ... skipped", " ... ", "FAIL: u", "ERROR: u v"),
    *("a (b.C)", "___ x.py:test_b ___", "--version is equivalent to version"),
    "System check identified no issues (0 silenced)",
    "Testing against Django installed in x silenced).",
    "Internal Server Error: /x/",
    *(START, END, ">>>>> Tests Errored", f"{CODE}: 1", f"{CODE}: 0", "2 passing", "Tests: 3"),
)
PIECES = st.sampled_from([*WORDS.split(), *LINES])
LOGS = st.lists(PIECES, max_size=30).map("".join)


@settings(max_examples=3000, deadline=None)
@given(LOGS, st.sampled_from(sorted(LOG_PARSERS)))
def test_logs_are_read_as_by_the_package(log, name):
    package()
    from swebench.harness.log_parsers import PARSER_REGISTRY

    try:
        theirs = PARSER_REGISTRY[name](log, None)
    except IndexError:  # it stumbles over "FAIL:" with no name
        return
    assert LOG_PARSERS[name](log) == theirs


@settings(max_examples=2000, deadline=None)
@given(
    LOGS,
    st.lists(st.sampled_from(["a.py::t", "a.py::t[x", "a.py::t[/q]", "u", "test_a"]), max_size=3),
    st.lists(st.sampled_from(["a.py::t", "a.py::t[x", "a (b.C)", "gone"]), max_size=3),
    st.sampled_from(["parse_log_pytest", "parse_log_astropy", "parse_log_requests"]),
    st.booleans(),
    st.booleans(),
)
def test_entries_are_those_of_the_package(log, fix, keep, name, fail_only, marked):
    package()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_output.txt")
        path.write_text(log_of(log, 0) if marked else log, "utf-8", newline="")
        expected = Expected("one", tuple(fix), tuple(keep), name, fail_only)
        assert OWN.grade(expected, path) == find_grader("swebench").grade(expected, path)


@given(LOGS)
def test_blame_is_that_of_the_package(log):
    package()
    from swebench.harness.infra_failure import classify_text

    assert classify(log) == classify_text(log)


ROW = {
    "instance_id": "one",
    "image": "i",
    "repo": "r",
    "version": "1",
    "FAIL_TO_PASS": '["f"]',
    "PASS_TO_PASS": ["k"],
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "eval_script": f"#!/bin/bash\nset -uxo pipefail\nmake\n: '{START}'\ntest\n: '{END}'\nback\n",
}


def test_tasks_are_read_as_they_are_or_as_text(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n\n")
    (tmp_path / "rows.json").write_text(json.dumps([ROW]))
    (one,) = read_tasks(tmp_path / "rows.jsonl", OWN)
    assert read_tasks(tmp_path / "rows.json", OWN) == [one]
    assert (one.instance_id, one.image) == ("one", "i")
    assert one.expected == Expected("one", ("f",), ("k",), "parse_log_pytest")
    assert one.eval_script == (
        "#!/bin/bash\nset -uxo pipefail\n"
        f"make\n: '{START}'\ntest\nSWEBENCH_TEST_EXIT_CODE=$?\n: '{END}'\n"
        f'echo "{CODE}: $SWEBENCH_TEST_EXIT_CODE"\nback\n'
    )


def test_the_script_is_that_of_the_package(tmp_path):
    package()
    from swebench.harness.utils import make_test_spec

    for script in (ROW["eval_script"], "no marks", f"a\n{END}\n{END}\n", "  \n#!/bin/bash\nx\n\n"):
        row = {**ROW, "eval_script": script}
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        (task,) = read_tasks(tmp_path / "rows.json", OWN)
        assert task.eval_script == make_test_spec(row).eval_script


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"image": None}, "`image` is None"),
        ({"instance_id": "../one"}, "expected a name for a folder"),
        ({"eval_type": "some"}, "`eval_type` is 'some'"),
        ({"log_parser": "parse_log_cargo"}, "branchrt 1 does not know"),
        ({"FAIL_TO_PASS": "[1]"}, "expected a list of tests"),
        ({"PASS_TO_PASS": "no json"}, "is no JSON"),
        ({"image_assets": {"patch": []}}, "to be fetched from elsewhere"),
    ],
)
def test_rows_that_cannot_be_run_are_refused(tmp_path, change, text):
    (tmp_path / "rows.json").write_text(json.dumps([{**ROW, **change}]))
    with pytest.raises(SweBenchFileError, match=r"row 0 \((../)?one\)") as caught:
        read_tasks(tmp_path / "rows.json", OWN)
    assert text in str(caught.value)


def test_files_that_are_no_tasks_are_refused(tmp_path):
    path = tmp_path / "rows.json"
    for content, text in (
        (json.dumps([{"instance_id": "one"}]), "has no image, repo, version"),
        (json.dumps([ROW, ROW]), "has one twice"),
        ("[]", "has no tasks"),
        ("{", "is no JSON"),
        ("[1]", "expected tasks as objects"),
    ):
        path.write_text(content)
        with pytest.raises(SweBenchFileError, match=text):
            read_tasks(path, OWN)
    with pytest.raises(SweBenchFileError, match=r"expected tasks in a \.json"):
        read_tasks(tmp_path / "rows.csv", OWN)


def test_predictions_in_each_form_are_the_same(tmp_path):
    rows = [
        {"instance_id": "one", "model_name_or_path": "m", "model_patch": "old"},
        {"instance_id": "two", "model_name_or_path": "m", "model_patch": None},
        {"instance_id": "one", "model_name_or_path": "m", "model_patch": "new"},
    ]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    (tmp_path / "q.json").write_text(json.dumps(dict(enumerate(rows))))
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("p.json", "q.json", "r.jsonl"):
        found = read_predictions(tmp_path / name)
        assert (found.model, found.patches) == ("m", {"one": "new", "two": ""})
    del rows[0]["model_name_or_path"], rows[2]["model_name_or_path"]
    (tmp_path / "p.json").write_text(json.dumps(rows[::2]))
    assert read_predictions(tmp_path / "p.json").model == "p"
    (tmp_path / "p.json").write_text(json.dumps(rows))
    (tmp_path / "q.json").write_text(json.dumps([{**rows[1], "model_name_or_path": ".."}]))
    with pytest.raises(SweBenchFileError, match="expected a name for a folder"):
        read_predictions(tmp_path / "q.json")
    with pytest.raises(SweBenchFileError, match=r"2 models \(m, p\)"):
        read_predictions(tmp_path / "p.json")


def test_graders_by_name():
    with pytest.raises(ValueError, match="`grading` is 'other'"):
        find_grader("other")
    assert find_grader("auto").name.startswith(("swebench ", "branchrt "))
