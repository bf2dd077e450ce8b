"""A process's name tells whether it still runs, and never calls gone what it cannot know."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import eventually

from switchboard.process_name import is_gone, process_name

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times are read from /proc")

SAY_NAME = "from switchboard.process_name import process_name; print(process_name(), flush=True)"
SAY_NAME_AND_WAIT = SAY_NAME + "; input()"


def changed(part: int, value: str) -> str:
    parts = process_name().split("/")
    parts[part] = value
    return "/".join(parts)


def test_this_process_is_not_gone() -> None:
    assert not is_gone(process_name())


def test_a_name_has_host_namespace_pid_and_start() -> None:
    assert process_name().split("/")[2] == str(os.getpid())
    assert len(process_name().split("/")) == 4
    assert process_name() == process_name()


def test_a_child_that_runs_is_not_gone_and_one_that_has_ended_is() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAY_NAME_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        name = child.stdout.readline().strip()
        assert str(child.pid) in name.split("/")
        assert not is_gone(name)
        child.communicate("\n")
    assert child.returncode == 0
    assert is_gone(name)


@linux
def test_a_process_that_has_ended_and_was_not_collected_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", SAY_NAME], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        name = child.stdout.readline().strip()
        # Nobody waits for it here, so that it stays as a zombie.
        eventually(lambda: is_gone(name), what="an ended child is gone")
        os.kill(child.pid, 0)  # it still has its pid


def test_a_fork_has_a_name_of_its_own() -> None:
    # What has been asked for before a fork must not be answered after it: Dramatiq's workers are forks.
    code = (
        "import os, sys\n"
        "from switchboard.process_name import process_name\n"
        "before = process_name()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(process_name() == before)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@linux
def test_a_pid_that_is_used_again_is_not_taken_for_the_process_before() -> None:
    assert is_gone(changed(3, "1"))


def test_a_start_that_is_not_known_proves_nothing() -> None:
    assert not is_gone(changed(3, "-"))


@pytest.mark.parametrize(("part", "value"), [(0, "another-host"), (1, "4026531000"), (1, "-")])
def test_what_may_run_elsewhere_is_never_gone(part: int, value: str) -> None:
    if process_name().split("/")[part] == value:
        pytest.skip("this system has no process namespaces")
    # A pid and a start that nobody here has.
    parts = changed(part, value).split("/")
    assert not is_gone("/".join([*parts[:2], "4194303", "1"]))


NOT_OURS: dict[str, Callable[[], str]] = {
    "empty": lambda: "",
    "a slash": lambda: "/",
    "slashes": lambda: "///",
    "one part": lambda: "consumer-1",
    "no pid": lambda: "a/b/c/d",
    "two parts": lambda: "worker/1",
    "a letter for a pid": lambda: changed(2, "x"),
    "a negative pid": lambda: changed(2, "-1"),
    "an empty pid": lambda: changed(2, ""),
    "a pid beyond all": lambda: changed(2, "9" * 40),
    "a part too many": lambda: process_name() + "/more",
    "where entries are parked": lambda: "switchboard.stored",
}


# By what they are: a name of this process would call the test otherwise in each process that collects it.
@pytest.mark.parametrize("what", NOT_OURS)
def test_a_name_that_is_not_one_of_ours_is_never_gone(what: str) -> None:
    name = NOT_OURS[what]()
    assert not is_gone(name)
