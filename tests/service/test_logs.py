"""The log tells what happened, on one line each, and nothing of what was said."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.errors import StorageError
from memory_bank.service.operations import logs

SECRET = "sk-a-secret"
HOSTILE = 'two\r\nlines \x1b[31m\x00\u2028 \ud800 level=CRITICAL {"a": 1}'


def record(message, *args, name="memory_bank.Service", level=logging.INFO, error=None, **extra):
    made = logging.LogRecord(name, level, __file__, 1, message, args, None)
    if error is not None:
        made.exc_info = (type(error), error, error.__traceback__)
    made.__dict__.update(extra)
    return made


def raised(make):
    try:
        make()
    except Exception as e:
        return e
    raise AssertionError("nothing was raised")


def failing():
    try:
        raise ValueError(f"bad value {SECRET}")
    except ValueError as e:
        raise StorageError("the disk is full: make room") from e


@given(text=st.text(max_size=80), value=st.text(max_size=80) | st.integers() | st.none())
def test_an_event_is_one_line_whatever_is_in_it(text, value):
    event = record("%s", text, given=value)
    line = logs.TextLines().format(event)
    assert line.isprintable()
    told = json.loads(logs.JsonLines().format(event))
    assert (told["message"], told["level"], told["given"]) == (text, "info", value)
    assert "\n" not in logs.JsonLines().format(event)


def test_hostile_text_is_escaped():
    line = logs.TextLines().format(record(HOSTILE, field=HOSTILE))
    assert line.isprintable()
    assert "\\x1b[31m" in line
    assert "\\r\\n" in line
    assert json.loads(logs.JsonLines().format(record(HOSTILE)))["message"] == HOSTILE


FORMS = pytest.mark.parametrize("form", [logs.TextLines(), logs.JsonLines()])


@FORMS
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: json.loads(f'{{"{SECRET}": ]'), ("JSONDecodeError", "json/decoder.py")),
        (failing, ("the disk is full: make room", "ValueError")),  # our own errors say what to do
    ],
)
def test_of_an_error_places_and_types_are_told_but_not_its_words(form, make, says):
    line = form.format(record("trouble", error=raised(make)))
    assert SECRET not in line
    assert all(said in line for said in says)


def test_errors_that_cause_one_another_in_a_circle_end():
    one, two = ValueError(SECRET), KeyError(SECRET)
    one.__cause__, two.__cause__ = two, one
    line = logs.TextLines().format(record("trouble", error=one))
    assert "ValueError < KeyError" in line
    assert SECRET not in line


@FORMS
def test_of_other_packages_only_the_first_line_is_told(form):
    text = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{SECRET}')>"
    line = form.format(record(text, name="asyncio", body=SECRET))
    assert "never retrieved" in line and SECRET not in line


def test_the_requests_id_is_on_every_line_of_it():
    token = logs.request_id.set("abc-1")
    try:
        assert " id=abc-1" in logs.TextLines().format(record("something"))
        assert json.loads(logs.JsonLines().format(record("something")))["id"] == "abc-1"
    finally:
        logs.request_id.reset(token)
    assert "id=" not in logs.TextLines().format(record("something"))


@pytest.fixture
def set_up():
    """``logs.set_up``; the logging of the tests is put back."""
    root = logging.getLogger()
    known = {n: (logging.getLogger(n).level, logging.getLogger(n).propagate) for n in
             ("", "memory_bank", "uvicorn", "uvicorn.error", "uvicorn.access")}  # fmt: skip
    handlers, raising = root.handlers[:], logging.raiseExceptions
    yield logs.set_up
    root.handlers[:] = handlers
    logging.raiseExceptions = raising
    logging.captureWarnings(False)
    for name, (level, propagate) in known.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = propagate


@pytest.mark.parametrize("verbose", [False, True])
def test_levels(set_up, capsys, verbose):
    set_up("json", verbose=verbose)
    ours, theirs = logging.getLogger("memory_bank.Service"), logging.getLogger("httpx2")
    ours.debug("ours, debug")
    ours.info("ours, info")
    theirs.info("theirs, info: POST https://api.example/?key=%s", SECRET)
    theirs.warning("theirs, warning")
    told = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert told == [*(["ours, debug"] if verbose else []), "ours, info", "theirs, warning"]


def test_a_line_that_cannot_be_made_is_not_shown_with_its_values(set_up, capsys):
    set_up("text")
    logging.getLogger("memory_bank.Service").warning("%d", SECRET)
    logging.getLogger("memory_bank.Service").warning("still here")
    written = capsys.readouterr().err
    assert SECRET not in written
    assert "still here" in written
