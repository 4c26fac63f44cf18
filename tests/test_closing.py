"""The end of a process: threads in native code end first, and no thread begins it then."""

import subprocess
import sys

ENDS = """
import sys, threading, time
from memory_bank.closing import native_code

def work(seconds, said):
    with native_code():
        time.sleep(seconds)
        print(said, flush=True)

threading.Thread(target=work, args=(1.5, "worked"), daemon=True).start()
late = threading.Timer(1.0, work, (0.0, "too late"))
late.daemon = True
late.start()
{}
sys.exit(7)
"""


def end(how=""):
    return subprocess.run([sys.executable, "-c", ENDS.format(how)], capture_output=True, text=True)


def test_the_end_of_a_process_waits_for_native_code_that_runs():
    done = end()
    assert (done.returncode, done.stdout, done.stderr) == (7, "worked\n", "")


def test_a_forked_child_waits_for_no_thread_of_its_parent():
    done = end(
        "import os; time.sleep(0.05); child = os.fork(); sys.exit(0) if not child else os.waitpid(child, 0)"
    )
    assert (done.returncode, done.stdout) == (7, "worked\n")
