import ast
from pathlib import Path

import pytest

import grpo_stack
from grpo_stack import doctor, findings, fit
from grpo_stack.errors import DescriptionError
from grpo_stack.findings import Finding

FOUND = (
    Finding("engine", "ok", "Engine 27"),
    Finding("gpus-free", "problem", "GPU 2 is in use", "end what uses it"),
    Finding("memory", "warning", "little"),
)


def test_the_table_has_every_finding_and_what_to_do_below_it():
    assert findings.table(FOUND) == [
        "ok       engine     Engine 27",
        "problem  gpus-free  GPU 2 is in use",
        "                    → end what uses it",
        "warning  memory     little",
    ]
    assert findings.summary(FOUND) == "1 problem, 1 warning, 1 ok"
    assert findings.summary(FOUND[:1]) == "0 problem, 1 ok"


def test_programs_get_the_same():
    data = findings.as_data(FOUND)

    assert data["ready"] is False
    assert data["checks"][1] == {
        "check": "gpus-free",
        "level": "problem",
        "found": "GPU 2 is in use",
        "fix": "end what uses it",
        "described": False,
    }
    assert findings.as_data(FOUND[::2])["ready"] is True


def test_a_check_that_is_left_out_says_so_and_stands_in_no_ones_way():
    left = findings.leave_out(FOUND, ["gpus-free", "gpus-free", "clock"])

    assert [(finding.check, finding.level) for finding in left] == [
        ("engine", "ok"),
        ("memory", "warning"),
        ("gpus-free", "skipped"),
        ("clock", "skipped"),
    ]
    assert findings.as_data(left)["ready"] is True


def test_leaving_out_an_unknown_check_is_refused_with_the_known_ones():
    findings.require_known(["engine", "ecc"], findings.CHECKS)
    with pytest.raises(DescriptionError, match="--skip: there is no check 'gpu'; known: engine, compose, "):
        findings.require_known(["engine", "gpu"], findings.CHECKS)


def test_the_page_of_checks_lists_all_of_them(update_golden):
    page = Path(grpo_stack.__file__).parent.parent / "docs" / "doctor.md"
    rows = "".join(f"| `{name}` | {fine} |\n" for name, fine in doctor.CHECKS.items())
    before, _, rest = page.read_text().partition("## The checks\n\n")
    after = rest[rest.index("Not checked:") :]
    expected = f"{before}## The checks\n\n| Check | Fine when |\n| --- | --- |\n{rows}\n{after}"
    if update_golden:
        page.write_text(expected)

    assert page.read_text() == expected


def test_the_checks_that_the_code_makes_are_those_that_are_listed():
    made = set()
    for file in {*Path(grpo_stack.__file__).parent.glob("*.py")} - {Path(fit.__file__)}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Finding":
                made |= {word.value for word in node.args[:1] if isinstance(word, ast.Constant)}

    by_variable = {"compose", "server.port", "trainer.group_port", "data.rewards", "trainer.env_file"}
    assert made == set(findings.CHECKS) - by_variable
