"""Of a long log, or the output of tests or a compiler, the summary and the failures are shown, whatever else is."""

import json
import random
import re

import pytest
from tests.chats import call, result, system, user
from tests.context.test_first_sight import COUNT, processor_of

from memory_bank import TOOL_SCHEMAS, handle_tool_call
from memory_bank.selection.cutting import cut_text
from memory_bank.selection.outcomes import Report, outcome, report_of
from memory_bank.transcript.quoting import as_terminal

RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


def filler(line, count, first=0):
    numbers = range(first, first + count)
    return "\n".join(line.format(n=n, m=n * 7919 % 9973, s=f"{n // 60:02}:{n % 60:02}") for n in numbers)


def between(line, failure, count=320):
    """A failure within many lines of a form."""
    half = count // 2
    return f"{filler(line, half)}\n{failure.strip(chr(10))}\n{filler(line, half, half)}"


def log(*parts):
    return "\n".join(parts)


PYTEST = log(
    filler("tests/service/test_m{m}.py::test_of_case_{n}[sqlite] PASSED                    [{n}%]", 300),
    """
=================================== FAILURES ===================================
_____________________________ test_a_refund_is_made ____________________________

    def test_a_refund_is_made():
        order = Order(total=Decimal("19.90"))
>       assert refund(order).amount == Decimal("19.90")
E       AssertionError: assert Decimal('19.9') == Decimal('0')
E        +  where Decimal('0') = Refund(id=7).amount

tests/shop/test_refunds.py:41: AssertionError
----------------------------- Captured stdout call -----------------------------""",
    filler("refund worker {m} has read row {n}", 200),
    """
=========================== short test summary info ============================
FAILED tests/shop/test_refunds.py::test_a_refund_is_made - AssertionError: assert ...
================== 1 failed, 599 passed, 3 skipped in 41.20s ===================""",
    filler("coverage of src/module_{m}.py is {n}% of its lines", 60),
)

UNITTEST = log(
    between(
        "test_case_{n} (tests.test_m{m}.Case.test_case_{n}) ... ok",
        """
======================================================================
FAIL: test_total (tests.test_shop.Totals.test_total)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/usr/lib/python3.12/unittest/case.py", line 58, in testPartExecutor
    yield
  File "/usr/lib/python3.12/unittest/case.py", line 634, in run
    self._callTestMethod(testMethod)
  File "/app/tests/test_shop.py", line 30, in test_total
    self.assertEqual(total(cart), 42)
AssertionError: 41 != 42
""",
    ),
    "Ran 321 tests in 12.345s\n\nFAILED (failures=1)",
    filler("removing /tmp/case-{m}", 60),
)

GO = log(
    between(
        "=== RUN   TestOf{n}\n--- PASS: TestOf{n} (0.0{n}s)",
        """
=== RUN   TestRefund
--- FAIL: TestRefund (0.42s)
    refund_test.go:88: refund of order 7: got 0, want 1990
    refund_test.go:91: ledger is off by 1990
""",
        480,
    ),
    "FAIL\nFAIL\tshop.example/refunds\t3.210s",
    filler("ok  \tshop.example/pkg{m}\t0.{n}s", 60),
)

CARGO = log(
    between(
        "test module_{m}::tests::case_{n} ... ok",
        """
failures:

---- refunds::tests::is_made stdout ----
thread 'refunds::tests::is_made' panicked at src/refunds.rs:77:9:
assertion `left == right` failed
  left: 0
 right: 1990
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        400,
    ),
    "test result: FAILED. 320 passed; 1 failed; 0 ignored; 0 measured; finished in 3.21s",
    filler("     Running unittests src/bin/tool_{m}.rs (target/debug/deps/tool-{n})", 40),
)

JEST = log(
    between(
        "  ✓ case {n} of module {m} works ({n} ms)",
        f"""
{RED}FAIL{PLAIN} src/refunds.test.ts
  {RED}● Refunds › is made{PLAIN}

    expect(received).toBe(expected) // Object.is equality

    Expected: {RED}1990{PLAIN}
    Received: {RED}0{PLAIN}
""",
        400,
    ),
    filler("PASS src/module_{m}.test.ts ({n} ms)", 60),
    "Test Suites: 1 failed, 60 passed, 61 total\nTests:       1 failed, 320 passed, 321 total",
    filler("  console.log of worker {m}", 60),
)

MAVEN = log(
    between(
        "[INFO] Running com.example.shop.Case{n}Test in worker {m}",
        """
[ERROR] Tests run: 4, Failures: 1, Errors: 0, Skipped: 0 <<< FAILURE! -- in com.example.RefundTest
[ERROR] com.example.RefundTest.isMade -- Time elapsed: 0.01 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <1990> but was: <0>
\tat com.example.RefundTest.isMade(RefundTest.java:51)
""",
    ),
    "[ERROR] Tests run: 325, Failures: 1, Errors: 0, Skipped: 0\n[INFO] BUILD FAILURE",
    filler("[INFO] module {m} SKIPPED", 60),
)

TSC = between(
    "src/module{m}.ts({n},5): error TS6133: 'unused{n}' is declared but its value is never read.",
    "src/refunds.ts(77,9): error TS2322: Type 'string' is not assignable to type 'number'.",
)

GCC = log(
    between(
        "gcc -O2 -Wall -Iinclude -c src/module{m}.c -o build/module{n}.o",
        """
src/refunds.c: In function 'refund':
src/refunds.c:77:9: error: 'amount' undeclared (first use in this function)
   77 |     if (amount > limit)
      |         ^~~~~~
""",
    ),
    "make: *** [Makefile:31: build/refunds.o] Error 1\nmake: *** Waiting for unfinished jobs....",
    filler("gcc -O2 -Wall -c src/late{m}.c", 20),
)

NPM = log(
    filler("npm warn deprecated module-{m}@1.0.{n}: this version is not supported", 300),
    "npm error code ERESOLVE\nnpm error ERESOLVE could not resolve",
    'npm error Could not resolve dependency: peer react@"^17.0.2" from react-refunds@2.1.0',
    filler("npm verbose stack {n} of module {m}, which is read to the end of its file", 20),
)

DOCKER = log(
    filler("#9 {n}.412 Get:{n} http://deb.example.org stable/main amd64 lib{m} amd64 1.{n}", 200),
    "#12 [build 5/8] RUN npm run build",
    "#12 3.102 src/refunds.ts(77,9): error TS2322: Type 'string' is not assignable to type 'number'.",
    '#12 ERROR: process "/bin/sh -c npm run build" did not complete successfully: exit code: 2',
    filler("#13 sha256:{m} {n}MB / 300MB", 300),
    'ERROR: failed to solve: process "/bin/sh -c npm run build" did not complete successfully: exit code: 2',
)

SERVER = between(
    "2026-03-01 12:{s},{n:03} INFO  [worker-{m}] shop.orders: order {m} was read in {n} ms",
    """
2026-03-01 12:03:09,511 ERROR [worker-3] shop.refunds: refund of order 7 was not made
Traceback (most recent call last):
  File "/app/shop/http.py", line 12, in handle
    return route(request)
  File "/app/shop/refunds.py", line 77, in refund
    ledger.book(order, -order.total)
shop.errors.LedgerError: the ledger of 2026-02 is closed
""",
)

JAVA = between(
    "2026-03-01T12:{s}.{n:03}Z  INFO 1 --- [exec-{m}] c.e.shop.OrderController : order {m} read",
    """
2026-03-01T12:03:09.511Z ERROR 1 --- [exec-3] c.e.shop.RefundController : refund failed
java.lang.IllegalStateException: could not book
\tat com.example.Ledger.book(Ledger.java:77)
\tat com.example.RefundController.post(RefundController.java:31)
Caused by: java.sql.SQLException: period 2026-02 is closed
\tat com.example.Periods.check(Periods.java:9)
""",
)

ACCESS = between(
    '10.0.0.{n} - - [01/Mar/2026:12:{s} +0000] "GET /orders/{m} HTTP/1.1" 200 {n} "-" "curl/8"',
    '10.0.0.7 - - [01/Mar/2026:12:03:09 +0000] "POST /refunds HTTP/1.1" 503 17 "-" "curl/8"',
)

CI = between(
    "2026-03-01T12:{s}.0000000Z Downloading package-{m} ({n} kB)",
    """
2026-03-01T12:05:09.0000000Z Traceback (most recent call last):
2026-03-01T12:05:09.0000000Z   File "/home/runner/work/shop/deploy.py", line 9, in <module>
2026-03-01T12:05:09.0000000Z     main(os.environ["SHOP_TOKEN"])
2026-03-01T12:05:09.0000000Z KeyError: 'SHOP_TOKEN'
2026-03-01T12:05:09.0000000Z ##[error]Process completed with exit code 1.
""",
)

POWERSHELL = log(
    between(
        r"  Module{m} -> C:\src\shop\bin\Debug\net8.0\Module{n}.dll",
        r"""
C:\src\shop\Refunds.cs(77,9): error CS0029: Cannot implicitly convert type 'string' to 'int' [C:\src\shop\shop.csproj]
""",
    ),
    "Build FAILED.\n    1 Error(s)",
)

LOGS = {
    "pytest": (PYTEST, [">       assert refund(order)", "E       AssertionError: assert Decimal('19.9')",
                        "tests/shop/test_refunds.py:41: AssertionError", "FAILED tests/shop/test_refunds.py::test_a",
                        "1 failed, 599 passed, 3 skipped"]),
    "unittest": (UNITTEST, ["FAIL: test_total", 'File "/app/tests/test_shop.py", line 30', "AssertionError: 41 != 42",
                            "Ran 321 tests", "FAILED (failures=1)"]),
    "go test": (GO, ["--- FAIL: TestRefund", "refund_test.go:88: refund of order 7: got 0", "FAIL\tshop.example"]),
    "cargo": (CARGO, ["panicked at src/refunds.rs:77:9", "assertion `left == right` failed", "  left: 0",
                      "test result: FAILED. 320 passed; 1 failed"]),
    "jest": (JEST, ["FAIL src/refunds.test.ts", "● Refunds › is made", "expect(received).toBe(expected)",
                    "Expected: 1990", "Received: 0", "Tests:       1 failed, 320 passed"]),
    "mvn": (MAVEN, ["[ERROR] com.example.RefundTest.isMade", "expected: <1990> but was: <0>",
                    "RefundTest.java:51", "[ERROR] Tests run: 325, Failures: 1"]),
    "tsc": (TSC, ["src/refunds.ts(77,9): error TS2322"]),
    "gcc and make": (GCC, ["src/refunds.c:77:9: error: 'amount' undeclared", "if (amount > limit)", "make: *** [Makefile:31"]),
    "npm": (NPM, ["npm error code ERESOLVE", "peer react@\"^17.0.2\""]),
    "docker build": (DOCKER, ["src/refunds.ts(77,9): error TS2322", "#12 ERROR: process", "ERROR: failed to solve"]),
    "server": (SERVER, ["ERROR [worker-3] shop.refunds: refund of order 7", 'refunds.py", line 77, in refund',
                        "shop.errors.LedgerError: the ledger of 2026-02 is closed"]),
    "java server": (JAVA, ["refund failed", "java.lang.IllegalStateException: could not book", "Ledger.java:77",
                           "Caused by: java.sql.SQLException: period 2026-02 is closed"]),
    "access log": (ACCESS, ['"POST /refunds HTTP/1.1" 503']),
    "CI": (CI, ["Traceback (most recent", 'deploy.py", line 9', "KeyError: 'SHOP_TOKEN'", "##[error]Process completed"]),
    "powershell": (POWERSHELL, ["Refunds.cs(77,9): error CS0029", "1 Error(s)"]),
}  # fmt: skip


def shown(text, task="Go on.", tool="bash"):
    processor = processor_of()
    given = [
        system(),
        user(task + " Take care." * 600),
        call(("c1", tool, {"command": "make"})),
        result("c1", text),
    ]
    context, _ = processor.apply_strategy(json.loads(json.dumps(given)), "b", tools=TOOL_SCHEMAS)
    return context[-1]["content"], processor.state("b")


@pytest.mark.parametrize(
    ("name", "line_end"),
    [*((name, "\n") for name in LOGS), *((name, "\r\n") for name in ("powershell", "jest", "server"))],
)
def test_summary_and_failures_of_a_log_are_shown(name, line_end):
    text, telling = LOGS[name]
    text = text.replace("\n", line_end)
    assert len(text) > 16_000
    part, _ = shown(text)
    assert COUNT(part) <= 4_000 and len(part) < len(text)
    assert [t for t in telling if t not in part] == []
    assert "say what failed" in part.split("\n")[0]


def test_many_failures_leave_room_and_the_mark_counts_them():
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyz"]
    text = "\n".join(f"src/{w}.c:{n}:5: error: '{w}' undeclared\n  {n} | {w}();" for n, w in enumerate(words))
    part, _ = shown(text)
    count = re.search(r" the lines that say what failed \((\d+) of 600\)", part)
    assert 20 <= int(count[1]) < 600 and COUNT(part) <= 4_000
    assert "error: 'aku' undeclared\n  0 | aku();" in part


def test_lines_of_which_nothing_is_likely_needed_do_not_fill_the_room():
    part, _ = shown(PYTEST)
    assert "1 failed, 599 passed" in part and COUNT(part) < 3_000


def test_the_same_failure_is_shown_once():
    text = between(
        "2026-03-01 12:{s} INFO order {m} read", filler("2026-03-01 12:{s} ERROR no order {n}", 300, 1)
    )
    assert len(report_of(text).failures) == 1


@pytest.mark.parametrize(
    "text",
    [
        filler("Chapter {n}: errors of the tests of {m} were read, and what failed was written down.", 300),
        filler("{n},ORD-{m},error,failed", 600),
        filler("def test_{n}(): raise ValueError({m})", 600),
        "",
        "\n" * 400,
        "x" * 20_000,
    ],
)
def test_other_texts_are_no_logs(text):
    assert report_of(text) == Report()


def test_colours_are_not_shown_and_what_is_shown_can_be_found():
    part, state = shown(JEST)
    assert "\x1b" not in part
    answer = handle_tool_call(state, "get_record", {"record": "#1", "pattern": "FAIL src/refunds"})
    assert "FAIL src/refunds.test.ts" in answer and "\x1b" not in answer
    (record,) = state.fact_store.get_many(list(state.steps))
    assert record.output_text == JEST


def test_of_progress_that_was_written_over_the_last_state_is_shown():
    progress = "".join(f"Downloading wheel {n}% of 31.4 MB\r" for n in range(100))
    log = f"{filler('{n} Collecting package-{m}', 900)}\n{progress}Downloaded wheel w-7f31.whl\nInstalled 300 packages\n"
    part, state = shown(log)
    assert "Downloaded wheel w-7f31.whl" in part and "47% of" not in part and "\r" not in part
    answer = handle_tool_call(state, "get_record", {"record": "#1", "pattern": "47% of"})
    assert "47% of 31.4 MB" in answer
    assert outcome(f"{progress}Downloaded wheel w-7f31.whl\n\n")[0] == "Downloaded wheel w-7f31.whl"
    mac = (
        "".join(f"{n},{name},1/2/2024,9\r" for n, name in enumerate(["Alice", "Bob", "Carol", "Dan"]))
        + "\nexit 0\n"
    )
    assert as_terminal(mac) == mac  # rows of a file whose lines end so
    rows = "".join(f"name {n}\rcity {n}\n" for n in range(60))
    assert "name 47" in "\n".join(s.text for s in cut_text(rows).segments)


def test_a_mark_tells_what_the_text_after_it_is_in():
    folders = [[f"module{7919 * (20 * d + n) % 9973}.py" for n in range(20)] for d in range(60)]
    folders[31][17] = "refunds-9.py"
    listing = "\n".join(f"./src/area{d}:\n" + "\n".join(names) + "\n" for d, names in enumerate(folders))
    part, _ = shown(listing, task="Open refunds-9.py.")
    assert re.search(r"^\[… lines \d+-\d+; then in \./src/area31\]\nrefunds-9\.py$", part, re.M)


def test_long_logs_of_any_form_take_linear_time_and_never_fail():
    dice = random.Random(0)
    marks = [
        "ERROR ",
        "Traceback (most recent call last):",
        "  ",
        ">",
        "E   ",
        ":",
        '" 500 ',
        "12:00:00 ",
        "FAIL",
        "\r",
    ]
    for _ in range(200):
        lines = ["".join(dice.choices(marks, k=dice.randrange(5))) for _ in range(dice.randrange(60))]
        text = "\n".join(lines)
        report = report_of(text)
        assert all(0 <= start <= stop <= len(text) for spans in report for start, stop in spans)
