"""The middleware, around an app that answers when told to, on a clock that moves when told to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grpo_stack import activity_api
from grpo_stack.activity import GENERATIONS, Activity
from tests.fakes.clock import FakeClock

GENERATE = "/v1/completions"
START, FINISH = "/start_weight_update", "/finish_weight_update"


class App:
    """Answers each request, whole or in parts, when it is told to; knows vLLM's rules of the weight update."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.bodies: list[bytes] = []
        self.statuses: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.fails: set[str] = set()
        self.updating = False

    def hold(self, path: str) -> asyncio.Event:
        """From now on requests for `path` are answered once the event is set."""
        self.gates[path] = asyncio.Event()
        return self.gates[path]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.arrived.append(path)
        self.bodies.append(await self._body(receive))
        gone = asyncio.ensure_future(self._gone(receive))
        answered = asyncio.ensure_future(self.gates[path].wait() if path in self.gates else asyncio.sleep(0))
        # As vLLM's with_cancellation: what the handler returns once the client has gone is a 200 with `null`.
        await asyncio.wait((gone, answered), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        answered.cancel()
        if path in self.fails:
            raise RuntimeError("the engine is dead")
        await send({"type": "http.response.start", "status": self._status(path), "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if path in self.gates and path + "#2" in self.gates:
            await self.gates[path + "#2"].wait()
        await send({"type": "http.response.body", "body": b""})

    def _status(self, path: str) -> int:
        status = self.statuses.get(path, 200)
        if path == START and status == 200:
            status, self.updating = (400 if self.updating else 200), True
        if path == FINISH and status == 200:
            self.updating = False
        return status

    @staticmethod
    async def _body(receive: Any) -> bytes:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return body
            body += message.get("body", b"")
            if not message.get("more_body", False):
                return body

    @staticmethod
    async def _gone(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Request:
    """One client: sends its body in two parts, reads the answer, and may hang up."""

    def __init__(self, app: Activity, path: str, method: str = "POST") -> None:
        self.messages: list[Any] = []
        self._parts: asyncio.Queue[Any] = asyncio.Queue()
        self._parts.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        self._parts.put_nowait({"type": "http.request", "body": b"}", "more_body": False})
        scope = {"type": "http", "path": path, "method": method}
        self.task = asyncio.ensure_future(app(scope, self._parts.get, self._take))

    async def _take(self, message: Any) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.hang_up()  # as uvicorn: what is received after the answer is a disconnect

    def hang_up(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])


async def settle() -> None:
    """Let every task run until all of them wait for something."""
    for _ in range(50):
        await asyncio.sleep(0)


class Stage:
    """The middleware with its app and clock."""

    def __init__(self, drain_s: float = 60) -> None:
        self.clock = FakeClock()
        self.app = App()
        self.activity = Activity(self.app, clock=self.clock, drain_s=drain_s)

    async def send(self, path: str, method: str = "POST") -> Request:
        request = Request(self.activity, path, method)
        await settle()
        return request

    async def report(self) -> activity_api.Report:
        request = await self.send(activity_api.REPORT, "GET")
        assert request.status == 200
        return activity_api.read(request.body)

    async def updating(self) -> None:
        assert (await self.send(START)).status == 200


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    """A test that is a coroutine; at its end no task of the middleware is left."""

    async def run() -> None:
        await test(Stage())
        await settle()
        assert asyncio.all_tasks() - {asyncio.current_task()} == set()

    def wrapper() -> None:
        asyncio.run(run())

    wrapper.__name__ = test.__name__
    return wrapper


@on_stage
async def test_a_server_at_rest(stage: Stage) -> None:
    assert await stage.report() == activity_api.Report(
        instance=stage.activity._instance,
        generating=0,
        oldest_s=0.0,
        held=0,
        generated=0,
        update_open_s=None,
        updates=0,
        longest_update_s=0.0,
        abandoned=False,
    )


@pytest.mark.parametrize("path", GENERATIONS)
def test_a_generation_counts_from_its_arrival_to_its_answer(path: str) -> None:
    @on_stage
    async def test(stage: Stage) -> None:
        answer = stage.app.hold(path)
        first = await stage.send(path)
        stage.clock.now = 5.0
        second = await stage.send(path)
        stage.clock.now = 7.0
        during = await stage.report()
        answer.set()
        await asyncio.gather(first.task, second.task)
        after = await stage.report()

        assert (during.generating, during.oldest_s, during.generated) == (2, 7.0, 0)
        assert (after.generating, after.oldest_s, after.generated) == (0, 0.0, 2)
        assert (first.status, first.body, stage.app.bodies[0]) == (200, b"half", b"{}")

    test()


@on_stage
async def test_a_streamed_answer_counts_until_its_last_part(stage: Stage) -> None:
    stage.app.hold(GENERATE).set()
    last = stage.app.hold(GENERATE + "#2")

    request = await stage.send(GENERATE)
    assert request.body == b"half"
    assert ((await stage.report()).generating, (await stage.report()).generated) == (1, 0)

    last.set()
    await request.task
    assert ((await stage.report()).generating, (await stage.report()).generated) == (0, 1)


@on_stage
async def test_a_client_that_hangs_up_is_counted_no_longer_and_has_got_nothing(stage: Stage) -> None:
    stage.app.hold(GENERATE)
    request = await stage.send(GENERATE)
    request.hang_up()
    await request.task

    report = await stage.report()
    assert (report.generating, report.generated) == (0, 0)


@on_stage
async def test_an_app_that_fails_is_counted_no_longer(stage: Stage) -> None:
    stage.app.fails.add(GENERATE)
    request = await stage.send(GENERATE)

    with pytest.raises(RuntimeError, match="the engine is dead"):
        await request.task
    report = await stage.report()
    assert (report.generating, report.generated) == (0, 0)


@on_stage
async def test_a_refused_generation_is_no_progress(stage: Stage) -> None:
    stage.app.statuses[GENERATE] = 500
    await (await stage.send(GENERATE)).task

    assert (await stage.report()).generated == 0


@on_stage
async def test_an_update_is_open_from_its_start_to_its_finish(stage: Stage) -> None:
    await stage.updating()
    stage.clock.now = 4.0
    during = await stage.report()
    assert (await stage.send(FINISH)).status == 200
    after = await stage.report()

    assert (during.update_open_s, during.updates, during.longest_update_s) == (4.0, 0, 0.0)
    assert (after.update_open_s, after.updates, after.longest_update_s) == (None, 1, 4.0)


@on_stage
async def test_the_longest_update_is_kept(stage: Stage) -> None:
    for seconds in (3.0, 9.0, 1.0):
        await stage.updating()
        stage.clock.now += seconds
        await stage.send(FINISH)

    report = await stage.report()
    assert (report.updates, report.longest_update_s) == (3, 9.0)


@on_stage
async def test_a_start_that_vllm_refuses_opens_nothing(stage: Stage) -> None:
    stage.app.statuses[START] = 500
    assert (await stage.send(START)).status == 500
    assert (await stage.report()).update_open_s is None

    assert (await stage.send(GENERATE)).status == 200


@on_stage
async def test_a_second_start_leaves_the_first_update_open_as_long_as_it_is(stage: Stage) -> None:
    await stage.updating()
    stage.clock.now = 4.0
    assert (await stage.send(START)).status == 400

    assert (await stage.report()).update_open_s == 4.0


@on_stage
async def test_a_second_start_that_succeeds_all_the_same_makes_the_update_no_younger(stage: Stage) -> None:
    await stage.updating()
    stage.clock.now = 4.0
    stage.app.updating = False
    assert (await stage.send(START)).status == 200

    assert (await stage.report()).update_open_s == 4.0


@on_stage
async def test_a_finish_that_fails_leaves_the_update_open(stage: Stage) -> None:
    await stage.updating()
    stage.app.statuses[FINISH] = 500
    assert (await stage.send(FINISH)).status == 500

    report = await stage.report()
    assert (report.update_open_s, report.updates) == (0.0, 0)


@on_stage
async def test_a_finish_without_an_update_counts_nothing(stage: Stage) -> None:
    await stage.send(FINISH)

    assert (await stage.report()).updates == 0


@on_stage
async def test_a_generation_that_meets_an_update_waits_for_its_end(stage: Stage) -> None:
    await stage.updating()
    request = await stage.send(GENERATE)
    stage.clock.now = 500.0
    during = await stage.report()
    arrived = list(stage.app.arrived)
    await stage.send(FINISH)
    await request.task

    assert GENERATE not in arrived
    assert (during.held, during.generating, during.oldest_s) == (1, 0, 0.0)
    assert (request.status, stage.app.bodies[-1]) == (200, b"{}")
    assert ((await stage.report()).held, (await stage.report()).generated) == (0, 1)


@on_stage
async def test_the_age_of_a_generation_leaves_out_the_time_that_it_was_held(stage: Stage) -> None:
    answer = stage.app.hold(GENERATE)
    await stage.updating()
    request = await stage.send(GENERATE)
    stage.clock.now = 500.0
    await stage.send(FINISH)
    stage.clock.now = 502.0
    await settle()

    assert (await stage.report()).oldest_s == 2.0
    answer.set()
    await request.task


@on_stage
async def test_a_client_that_hangs_up_while_held_is_let_go_and_never_reaches_vllm(stage: Stage) -> None:
    await stage.updating()
    request = await stage.send(GENERATE)
    request.hang_up()
    await request.task

    assert (await stage.report()).held == 0
    await stage.send(FINISH)
    assert GENERATE not in stage.app.arrived
    assert request.messages == []


@on_stage
async def test_a_client_that_hangs_up_after_it_was_held_is_noticed_by_the_app(stage: Stage) -> None:
    stage.app.hold(GENERATE)
    await stage.updating()
    request = await stage.send(GENERATE)
    await stage.send(FINISH)
    assert (await stage.report()).generating == 1

    request.hang_up()
    await request.task
    report = await stage.report()
    assert (report.generating, report.generated) == (0, 0)


@on_stage
async def test_an_update_waits_for_the_generations_in_flight_and_new_ones_wait_for_it(stage: Stage) -> None:
    answer = stage.app.hold(GENERATE)
    before = await stage.send(GENERATE)
    start = await stage.send(START)
    behind = await stage.send(GENERATE)
    assert stage.app.arrived == [GENERATE]
    assert ((await stage.report()).held, (await stage.report()).update_open_s) == (1, None)

    answer.set()
    await asyncio.gather(before.task, start.task)
    assert start.status == 200
    assert ((await stage.report()).held, (await stage.report()).update_open_s) == (1, 0.0)

    await stage.send(FINISH)
    await behind.task
    assert stage.app.arrived == [GENERATE, START, FINISH, GENERATE]


def test_an_update_that_waits_too_long_is_refused_as_something_to_try_again() -> None:
    async def run() -> None:
        stage = Stage(drain_s=0)
        answer = stage.app.hold(GENERATE)
        generation = await stage.send(GENERATE)
        start = await stage.send(START)
        behind = await stage.send(GENERATE)

        assert start.status == 503
        assert "still in flight" in json.loads(start.body)["error"]
        assert stage.app.arrived == [GENERATE, GENERATE]
        assert (await stage.report()).update_open_s is None
        answer.set()
        await asyncio.gather(generation.task, behind.task)

    asyncio.run(run())


@on_stage
async def test_a_trainer_that_hangs_up_while_its_update_waits_never_opens_one(stage: Stage) -> None:
    answer = stage.app.hold(GENERATE)
    generation = await stage.send(GENERATE)
    start = await stage.send(START)
    start.hang_up()
    await start.task
    answer.set()
    await generation.task

    assert START not in stage.app.arrived
    assert start.messages == []
    assert (await stage.report()).update_open_s is None
    assert (await stage.send(GENERATE)).status == 200


@on_stage
async def test_an_update_opens_though_its_trainer_was_lost_meanwhile(stage: Stage) -> None:
    answer = stage.app.hold(START)
    start = await stage.send(START)
    start.hang_up()
    answer.set()
    await start.task

    assert (await stage.report()).update_open_s == 0.0


@on_stage
async def test_an_open_update_can_be_given_up_and_nothing_else(stage: Stage) -> None:
    without = await stage.send(activity_api.ABANDON)
    assert (json.loads(without.body), (await stage.report()).abandoned) == ({"abandoned": False}, False)

    await stage.updating()
    given_up = await stage.send(activity_api.ABANDON)
    assert (json.loads(given_up.body), (await stage.report()).abandoned) == ({"abandoned": True}, True)

    await stage.send(FINISH)
    assert (await stage.report()).abandoned is False


@on_stage
async def test_its_own_routes_take_their_own_method_only(stage: Stage) -> None:
    assert (await stage.send(activity_api.REPORT, "POST")).status == 405
    assert (await stage.send(activity_api.ABANDON, "GET")).status == 405
    assert stage.app.arrived == []


@on_stage
async def test_everything_else_passes_uncounted_also_during_an_update(stage: Stage) -> None:
    await stage.updating()
    for method, path in (("GET", "/health"), ("POST", "/update_weights"), ("GET", GENERATE)):
        assert (await stage.send(path, method)).status == 200

    assert (await stage.report()).generated == 0


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_http_request_passes_untouched(kind: str) -> None:
    seen: list[tuple[Any, ...]] = []

    async def app(*words: Any) -> None:
        seen.append(words)

    words: tuple[Any, ...] = ({"type": kind, "path": GENERATE}, object(), object())
    asyncio.run(Activity(app)(*words))  # type: ignore[arg-type]

    assert seen == [words]


def test_the_instance_comes_from_the_environment_or_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(activity_api.INSTANCE, "given")
    assert Activity(App()).report().instance == "given"
    monkeypatch.delenv(activity_api.INSTANCE)
    assert len({Activity(App()).report().instance for _ in range(2)}) == 2


def test_a_report_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    report = Activity(App()).report()
    newer = json.dumps({**json.loads(activity_api.write(report)), "more": 1}).encode()

    assert activity_api.read(activity_api.write(report)) == report == activity_api.read(newer)
    for body in (b"", b"[]", b"{}", b'{"instance": "x"}', b"<html>", b"\xff"):
        with pytest.raises(ValueError, match="no report"):
            activity_api.read(body)


def test_the_supervisors_polling_stays_out_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    Activity(App())
    log = logging.getLogger("uvicorn.access")

    with caplog.at_level(logging.INFO, "uvicorn.access"):
        for path in ("/grpo_stack/activity", "/metrics", "/grpo_stack/abandon", GENERATE):
            log.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:40000", "GET", path, "1.1", 200)
        log.info("something else")

    told = [record.getMessage() for record in caplog.records]
    assert told == [
        '127.0.0.1:40000 - "GET /grpo_stack/abandon HTTP/1.1" 200',
        f'127.0.0.1:40000 - "GET {GENERATE} HTTP/1.1" 200',
        "something else",
    ]
