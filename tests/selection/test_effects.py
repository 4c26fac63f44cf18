"""Whether a call changes something: declared, by name, by what it runs, by its outcome."""

import json

import pytest
from hypothesis import given
from tests.chats import JSON, TEXT

from memory_bank.selection.effects import changes_something, is_failure, may_fetch


@pytest.mark.parametrize(
    "tool",
    [
        "send_email", "emails-send_email", "issue_refund", "TaskUpdate", "github-create_or_update_file", "Edit",
        "filesystem-write_file", "canvas-canvas_submit_grade", "get_and_update", "frobnicate", "cancelOrder",
    ],
)  # fmt: skip
def test_names_that_say_so_and_unknown_names_are_changes(tool):
    assert changes_something(tool, "{}", "ok")


@pytest.mark.parametrize(
    "tool", ["get_order", "list_created_issues", "filesystem-read_file", "search", "Grep", "canvas_get_quiz"]
)
def test_look_ups_are_none(tool):
    assert not changes_something(tool, '{"id": 7}', "ok")


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("ls -la src | head -20", False),
        ("cd /repo && grep -rn 'rm -rf' src 2>/dev/null", False),
        ("git status && git log --oneline -5", False),
        ("cat a.txt > b.txt", True),
        ("sed -n 1,20p a.py", False),
        ("sed -i s/a/b/ a.py", True),
        ("git commit -m 'x'", True),
        ("rm build.log", True),
        ("cat <<'EOF' > a.py\nprint(1)\nEOF", True),
        ("python -c 'print(1)'", False),
        ('python -c \'open("a", "w").write("x")\'', True),
        ("./deploy.sh", True),
        ("curl https://shop.example/orders", False),
        ("curl -X POST https://shop.example/orders", True),
        ("find . -name '*.pyc' -delete", True),
        ("pytest -q tests 2>&1 | tail -3", False),
    ],
)
def test_shell_commands_are_judged_by_what_they_run(command, changed):
    assert changes_something("bash", json.dumps({"command": command}), "done") is changed


@pytest.mark.parametrize(
    ("sql", "changed"),
    [
        ("SELECT * FROM orders WHERE note = 'update me'", False),
        ("-- totals\nWITH t AS (SELECT 1) SELECT * FROM t", False),
        ("update orders set state = 'paid'", True),
        ("DELETE FROM orders", True),
        ("SELECT 1; DROP TABLE orders", True),
        ("vacuum", True),
    ],
)
def test_sql_is_judged_by_its_statements(sql, changed):
    assert changes_something("run_sql", json.dumps({"query": sql}), "[]") is changed


def test_code_and_http_methods():
    def python(code: str) -> bool:
        return changes_something("python_execute", json.dumps({"code": code}), "7")

    assert not python("import json\nprint(sum([1, 2]))")
    assert python("df.to_csv('out.csv')")
    assert python("requests.post(url, json=body)")
    assert changes_something("http", {"method": "DELETE", "url": "/orders/1"}, "")
    assert not changes_something("http", {"method": "GET", "url": "/orders/1"}, "")


def test_a_wrapper_is_judged_by_the_tool_that_it_names():
    assert changes_something("execute-tool", {"tool_name": "send_email", "params": {}}, "sent")
    assert not changes_something(
        "execute-tool", {"tool_name": "get_weather", "params": {"city": "Oslo"}}, "9"
    )


def test_what_failed_changed_nothing_and_a_declaration_is_believed():
    assert not changes_something("send_email", "{}", "Error: no such mailbox")
    assert changes_something("send_email", "{}", "Sent. 0 failed.")
    assert not changes_something("frobnicate", "{}", "ok", {"frobnicate": "read"})
    assert changes_something("get_token", "{}", "ok", {"get_token": "write"})


@pytest.mark.parametrize(
    "output",
    [
        "Traceback (most recent call last):\n  …\nValueError: x",
        '{"error": "no such order"}',
        '{"success": false, "message": "x"}',
        '{"content": [{"type": "text", "text": "Error: denied"}], "isError": false}',
        "<returncode>1</returncode>\n<output>x</output>",
        "ValueError: bad",
    ],
)
def test_reports_of_failure(output):
    assert is_failure(output)


@pytest.mark.parametrize(
    "output", ["", "ok", '{"error": null, "id": 7}', "exit code: 0", "12 errors were fixed"]
)
def test_other_outputs_are_none(output):
    assert not is_failure(output)


@given(TEXT, TEXT | JSON.map(json.dumps), TEXT | JSON.map(json.dumps))
def test_anything_is_judged(tool, arguments, output):
    assert changes_something(tool, arguments, output) in (True, False)


@pytest.mark.parametrize(
    ("tool", "arguments", "may"),
    [
        ("fetch-fetch_html", {"url": "https://a.example/papers.html"}, True),
        ("browser_get_html", {}, True),
        ("execute-tool", {"server": "fetch", "params": {"url": "https://a.example/s?k=1"}}, True),
        ("Bash", {"command": "curl -i http://localhost:3000/"}, True),
        ("execute_code", {"code": "import requests\nprint(requests.get(base).text)"}, True),
        ("Bash", {"command": "cat public/index.html"}, False),
        ("Bash", {"command": "sed -n 1,80p index.html | grep -v https://a.example"}, False),
        ("Bash", {"command": "cd web; git show HEAD:index.html; curl -s http://localhost:3000"}, False),
        ("Bash", {"command": "git diff origin/main # https://a.example"}, False),
        ("Bash", {"command": "curl https://raw.a.example/o/r/main/App.vue"}, False),
        ("Read", {"file_path": "/src/page"}, False),
        ("Grep", {"pattern": "<", "path": "/src/layout.tsx", "output_mode": "content"}, False),
        ("filesystem-read_multiple_files", {"paths": ["a/index.html", "b.css"]}, False),
        ("browse", {"url": "file:///src/index.html"}, False),
        ("get_template", {"id": "welcome"}, False),
    ],
)
def test_a_page_is_fetched_and_a_source_is_read(tool, arguments, may):
    assert may_fetch(tool, json.dumps(arguments)) is may
