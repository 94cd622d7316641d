"""Of two `up`s of one run the second is refused, whatever each runs in, before it touches a file of the first."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from grpo_stack import description, engine, local_start, occupancy, plan, presets, process_tree, run_state, start
from grpo_stack.description import Description
from grpo_stack.errors import HostError
from grpo_stack.facts import Container
from grpo_stack.plan import StackPlan

Write = Callable[..., object]


def contain(described: Description, planned: StackPlan, project: str) -> None:
    """Begin a run in containers that is over at once."""
    with start.begun(described, planned, project):
        pass


RUNTIMES = pytest.mark.parametrize("runtime", [contain, local_start.write], ids=["containers", "processes"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was begun in containers and is over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "find_client", lambda: "docker")
    monkeypatch.setattr(engine, "made_from", lambda file: {})
    monkeypatch.setattr(engine, "told_to_write", lambda folder, options: {})
    begin(contain, "first/model")
    return tmp_path / "outputs" / "mine"


def begin(write: Write, model: str, project: str = "b") -> None:
    described = description.load(None, None, {"split": "1:1", "run": "mine", "model": model}, [])
    write(described, plan.derive(described.spec), project)


def refusal(write: Write, run: Path) -> str:
    """Why a second `up` was refused; that one has touched nothing."""
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    with pytest.raises(HostError) as caught:
        begin(write, "second/model")
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == before
    return str(caught.value)


def containers(*states: str) -> tuple[Container, ...]:
    names = ("trainer", "vllm-server")
    return tuple(Container(f"a-{n}-1", n, state, None, None, False) for n, state in zip(names, states, strict=False))


@RUNTIMES
@pytest.mark.parametrize("state", occupancy.RUNNING)
def test_a_run_whose_containers_are_there_is_refused_though_its_up_was_killed(
    state: str, runtime: Write, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine, "made_from", lambda file: {"a": containers("exited", state)} if file.parent == run else {}
    )

    assert refusal(runtime, run) == (
        "run mine is running already, in containers of the project a (vllm-server); "
        "stop it with `grpo-stack down --project a`, or choose another --run"
    )


@RUNTIMES
@pytest.mark.parametrize("state", occupancy.RUNNING)
@pytest.mark.parametrize("begun", [False, True], ids=["no folder yet", "a folder"])
def test_a_run_of_plain_docker_compose_is_refused(
    begun: bool, state: str, runtime: Write, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written no Compose file into the run's folder, and holds nothing."""
    (run / "compose.yaml").unlink()
    if not begun:
        run.rename(run.with_name("other"))
    project = {"plain": containers(state)}
    monkeypatch.setattr(engine, "told_to_write", lambda folder, options: project if folder == run else {})

    with pytest.raises(HostError) as caught:
        begin(runtime, "second/model")

    assert str(caught.value) == (
        "run mine is running already, in containers of the project plain (trainer); "
        "stop it with `grpo-stack down --project plain`, or choose another --run"
    )
    assert run.exists() == begun


def test_docker_is_not_asked_about_a_folder_of_runs_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "told_to_write", lambda folder, options: pytest.fail("asked"))

    occupancy.require_free(tmp_path / "outputs" / "mine", with_docker=True)


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_what_writes_to_a_run_is_told_so_as_docker_is_asked_for_it(preset: str) -> None:
    file = Path(__file__).parent.parent / "compose" / preset / "compose.yaml"
    for name, service in yaml.safe_load(file.read_text())["services"].items():
        writes = any(volume.get("target") == "/outputs" for volume in service.get("volumes", ()))
        words = [*service.get("entrypoint", ()), *service.get("command", ())]
        told = {value for option, value in pairwise(words) if option in occupancy._WRITERS}
        assert told == ({"/outputs/${RUN:-run}"} if writes else set()), name


def test_of_two_that_start_at_once_one_writes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one passed every check before this one held the folder."""
    monkeypatch.setattr(occupancy, "require_free", lambda folder, with_docker: None)
    with run_state.claim(run):
        assert refusal(contain, run).startswith("run mine is in use by another `grpo-stack up`")


@RUNTIMES
def test_containers_that_have_ended_are_in_nobodys_way(
    runtime: Write, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "made_from", lambda file: {"a": containers("exited", "created")})

    begin(runtime, "second/model")

    assert "second/model" in (run / "stack.yaml").read_text()


@RUNTIMES
def test_a_run_whose_up_has_started_nothing_yet_is_refused(
    runtime: Write, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "holder", lambda lock: 1234)
    with run_state.claim(run):
        found = refusal(runtime, run)

    assert found == (
        "run mine is in use by another `grpo-stack up` (pid 1234); end that one first, or choose another --run"
    )
    begin(runtime, "second/model")


@RUNTIMES
def test_a_run_whose_processes_are_there_is_refused(runtime: Write, run: Path) -> None:
    own = run_state.Member("trainer", process_tree.Process(os.getpid(), process_tree.find(os.getpid()).started))  # type: ignore[union-attr]
    killed = run_state.Member("up", process_tree.Process(os.getpid(), -1))
    with run_state.claim(run) as record:
        record.write(run_state.State("a", process_tree.boot(), killed, (own,)))

    assert refusal(runtime, run) == (
        f"run mine is running already, left by an `up` that was killed: trainer (pid {os.getpid()}); stop it with "
        f"`grpo-stack down --runtime process --outputs {run.parent} --run mine`, or choose another --run"
    )


@pytest.mark.parametrize("question", ["made_from", "told_to_write"])
def test_where_docker_does_not_answer_containers_are_refused_and_processes_are_not(
    question: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> dict[str, tuple[Container, ...]]:
        raise HostError("Docker's daemon does not run")

    monkeypatch.setattr(engine, question, silent)

    assert refusal(contain, run) == "Docker's daemon does not run"
    begin(local_start.write, "second/model")


def test_a_run_in_containers_leaves_no_word_of_earlier_processes(run: Path) -> None:
    begin(local_start.write, "second/model")
    with run_state.claim(run) as record:
        gone = run_state.Member("up", process_tree.Process(os.getpid(), -1))
        record.write(run_state.State("a", process_tree.boot(), gone))

    begin(contain, "third/model")

    assert {entry.name for entry in run.iterdir()} == {".lock", "logs", "stack.yaml", "compose.yaml"}


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks as Linux makes them on NFS (flock(2)): an exclusive one needs a file that is open for writing."""
    local = fcntl.flock

    def flock(lock: int, kind: int) -> None:
        if kind & fcntl.LOCK_EX and fcntl.fcntl(lock, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        local(lock, kind)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("nfs")
@RUNTIMES
@pytest.mark.parametrize("written", [False, True], ids=["nothing written yet", "written on another host"])
def test_on_nfs_a_run_is_refused_as_well_whatever_host_it_is_on(
    written: bool, runtime: Write, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "holder", lambda lock: None)
    own = run_state.Member("up", process_tree.Process(os.getpid(), process_tree.find(os.getpid()).started))  # type: ignore[union-attr]
    with run_state.claim(run) as record:
        if written:
            record.write(run_state.State("a", "boot of another host", own))
        found = refusal(runtime, run)
        with pytest.raises(HostError) as second, run_state.claim(run):
            pass

    assert (
        found
        == str(second.value)
        == (
            "run mine is in use by another `grpo-stack up`, maybe on another host; "
            "end that one first, or choose another --run"
        )
    )
    begin(runtime, "second/model")


def test_two_that_only_ask_are_not_in_each_others_way_and_leave_nothing(tmp_path: Path) -> None:
    run_state.require_idle(tmp_path)
    assert list(tmp_path.iterdir()) == []

    (tmp_path / run_state.LOCK).touch()
    with (tmp_path / run_state.LOCK).open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        run_state.require_idle(tmp_path)


def test_the_lock_of_a_folder_that_a_group_shares_is_for_the_group(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with run_state.claim(tmp_path):
            assert (tmp_path / run_state.LOCK).stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


@pytest.mark.parametrize("fault", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_locked_still_goes_by_what_is_written_there(
    fault: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(fcntl, "flock", flock)
    own = run_state.Member("up", process_tree.Process(os.getpid(), process_tree.find(os.getpid()).started))  # type: ignore[union-attr]

    with run_state.claim(run) as record:
        record.write(run_state.State("a", process_tree.boot(), own))

    with pytest.raises(HostError, match="run mine is running already; stop it with"), run_state.claim(run):
        pass
    assert "run mine is running already; stop it with" in refusal(contain, run)


def test_a_folder_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught, run_state.claim(tmp_path / "none"):
        pass

    assert str(caught.value) == (
        f"outputs: {tmp_path}/none/.lock: no such file or directory; name another folder: --outputs FOLDER"
    )


def test_a_name_that_no_folder_can_have_is_left_for_whoever_makes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_ask", lambda question: [])

    occupancy.require_free(tmp_path / ("x" * 300), with_docker=True)


def test_who_holds_a_lock_is_known_where_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        stat = os.fstat(lock)
        place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
        monkeypatch.setattr(process_tree, "_PROC", tmp_path)
        (tmp_path / "locks").write_text(
            f"1: POSIX  ADVISORY  WRITE 11 {place} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 00:01:2 0 EOF\n"
            f"3: FLOCK  ADVISORY  WRITE 0 {place} 0 EOF\n"
        )
        assert process_tree.holder(lock) is None
        with (tmp_path / "locks").open("a") as more:
            more.write(f"4: -> FLOCK  ADVISORY  WRITE 13 {place} 0 EOF\n5: FLOCK  ADVISORY  WRITE 14 {place} 0 EOF\n")
        assert process_tree.holder(lock) == 14

        (tmp_path / "locks").unlink()
        assert process_tree.holder(lock) is None
    finally:
        os.close(lock)
