import pytest

from grpo_stack import document
from grpo_stack.schema import Invalid


def test_every_key_that_stands_twice_in_one_mapping_is_named_with_both_lines():
    data, problems = document.read("a: 1\nb:\n  c: 1\n  'c': 2\nd: {c: 1, c: 2}\na: 2\ne: [{c: 1}, {c: 1}]\n")

    assert data["a"] == 2
    assert sorted(problems) == [
        "line 4: 'c' stands in line 3 already; keep one of the two",
        "line 5: 'c' stands in line 5 already; keep one of the two",
        "line 6: 'a' stands in line 1 already; keep one of the two",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nrun: 2024-13-45\n", "line 2, column 6: is no YAML: '2024-13-45' is no timestamp; put a text in quotes"),
        ("server: {port: 0x_}\n", "line 1, column 16: is no YAML: '0x_' is no int"),
        ("run: !!float x\n", "line 1, column 6: is no YAML: 'x' is no float"),
        ("run: !!bool x\n", "line 1, column 6: is no YAML: 'x' is no bool"),
        ("run: !!int ''\n", "line 1, column 6: is no YAML: '' is no int"),
        ("run: !!timestamp x\n", "line 1, column 6: is no YAML: 'x' is no timestamp"),
        ("port: " + "9" * 5000, "line 1, column 7: is no YAML: '999"),
        ("a: !!python/object:x {}", "line 1, column 4: is no YAML: could not determine a constructor"),
        ("a: [\n", "line 2, column 1: is no YAML"),
        ("a: 1\nb: \0\n", "line 2: is no YAML: it holds the character 0x0; remove it"),
        ("[" * 3000, "is nested too deeply"),
        ("a: &a [*a]\n", "its aliases stand for more than 100000 values, or for themselves"),
        (
            "- &a0 x\n" + "".join(f"- &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 11)),
            "its aliases stand for more",
        ),
    ],
    ids=range(13),
)
def test_what_yaml_cannot_make_data_of_is_named_in_one_line_with_its_place(text, message):
    with pytest.raises(Invalid) as caught:
        document.read(text)

    assert str(caught.value).startswith(message)
    assert str(caught.value).isprintable()


def test_aliases_and_merged_mappings_of_ordinary_size_are_data():
    assert document.read("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a\n") == (
        {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 1}},
        [],
    )
    assert document.read("") == (None, [])
