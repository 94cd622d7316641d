"""The trainer's half: what TRL's client does over NCCL, over gloo.

TRL 1.13 and 1.16 refuse any device but CUDA in `VLLMClient.init_communicator`, and send with vLLM's NCCL producer. Many
trainers import that class by name, so `install` replaces three methods on the class itself; each hands over to TRL's
own unless the server says that its backend is gloo.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from grpo_stack.errors import NotReadyError, RunError
from grpo_stack.transfer import BACKEND, wire
from grpo_stack.transfer.group import BROADCAST_TIMEOUT_S, JOIN_TIMEOUT_S, GlooGroup, Rendezvous

Metadata = list[tuple[str, str, list[int]]]
"""TRL's announcement of a push: name, dtype and shape of each tensor, in the order in which they are sent."""

ANSWER_TIMEOUT_S = 300.0
"""For the server's answer once all has been sent or joined: it loads the last buffer, or reports a fault of its own
wait, which is shorter than this."""


def install() -> None:
    """Let TRL's `VLLMClient` push over gloo to servers that ask for it. Called where there is no CUDA device."""
    from trl.generation.vllm_client import VLLMClient

    if getattr(VLLMClient.init_communicator, "over_gloo", False):
        return
    nccl_init, nccl_update, nccl_close = (
        VLLMClient.init_communicator,
        VLLMClient.update_named_params,
        VLLMClient.close_communicator,
    )

    def init_communicator(self: Any, device: Any = 0) -> None:
        config = _weight_transfer_config(self)
        if config is None or config["backend"] != BACKEND:
            return nccl_init(self, device)
        return _join(self)

    def update_named_params(self: Any, metadata: Metadata, named_params: Iterable[tuple[str, Any]]) -> None:
        if isinstance(self.communicator, GlooGroup):
            return _push(self, metadata, named_params)
        return nccl_update(self, metadata, named_params)

    def close_communicator(self: Any) -> None:
        if not isinstance(self.communicator, GlooGroup):
            return nccl_close(self)
        self.communicator.close()
        self.communicator = None
        return None

    init_communicator.over_gloo = True  # type: ignore[attr-defined]
    VLLMClient.init_communicator = init_communicator
    VLLMClient.update_named_params = update_named_params
    VLLMClient.close_communicator = close_communicator


def _weight_transfer_config(client: Any) -> Any:
    if hasattr(client, "get_server_info"):
        return client.get_server_info()["weight_transfer_config"]
    # TRL 1.13 does not look at what the server says about itself.
    return client._get(f"{client.base_url}/server_info?config_format=json")["vllm_config"]["weight_transfer_config"]


def _join(client: Any) -> None:
    """Open the store, have the server's workers connect to it, and keep the group as the client's communicator."""
    from vllm.utils.network_utils import get_ip

    address = get_ip()
    if address == "0.0.0.0":
        raise RunError("this host has no default route, so the server cannot be told where to dial; set VLLM_HOST_IP")
    world_size = client.get_world_size() + 1
    init_info = {
        "master_address": address,
        "master_port": client.group_port,
        "rank_offset": 1,
        "world_size": world_size,
        "chunk_bytes": wire.DEFAULT_CHUNK_BYTES,
        "join_timeout_s": JOIN_TIMEOUT_S,
        "broadcast_timeout_s": BROADCAST_TIMEOUT_S,
    }
    # The server handles the request by joining, so the request and our own joining have to run side by side.
    answer = _post_aside(client, "/init_weight_transfer_engine", {"init_info": init_info})
    where = Rendezvous(address, client.group_port, rank=0, world_size=world_size)
    try:
        client.communicator = GlooGroup(where, JOIN_TIMEOUT_S, BROADCAST_TIMEOUT_S)
    except RuntimeError:
        _raise_the_servers_reason(answer)
        raise
    answer.result(ANSWER_TIMEOUT_S)
    atexit.register(client.close_communicator)


def _push(client: Any, metadata: Metadata, named_params: Iterable[tuple[str, Any]]) -> None:
    """Announce the tensors, then send them; inside `client.weight_update()` its start and finish frame the push."""
    tensors = [wire.TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in metadata]
    names, dtypes, shapes = (list(field) for field in zip(*metadata, strict=True))
    update_info = {"names": names, "dtype_names": dtypes, "shapes": shapes}
    group = client.communicator
    if not client._updating_weights:
        client._start_weight_update()
    answer = _post_aside(client, "/update_weights", {"update_info": update_info})
    try:
        for buffer in _buffers(tensors, iter(named_params)):
            _send(group, buffer, answer)
    except BaseException:
        group.close()  # at which the server's receive fails too, so that its answer is not long in coming
        _raise_the_servers_reason(answer)
        raise
    answer.result(ANSWER_TIMEOUT_S)
    if not client._updating_weights:
        client._finish_weight_update()


def _buffers(tensors: list[wire.TensorSpec], named_params: Iterator[tuple[str, Any]]) -> Iterator[Any]:
    """Pack the parameters as they come, one buffer at a time, so that at most one is held beside the model."""
    import torch

    for chunk in wire.cut(tensors, wire.DEFAULT_CHUNK_BYTES):
        buffer = torch.empty(chunk.nbytes, dtype=torch.uint8)
        for spec, offset in zip(chunk.tensors, chunk.offsets, strict=True):
            name, tensor = next(named_params, ("nothing", torch.empty(0)))
            if name != spec.name or tensor.numel() * tensor.element_size() != spec.nbytes:
                raise RunError(f"push: {spec.name} {spec.dtype} {list(spec.shape)} was announced, {name} came")
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            buffer[offset : offset + spec.nbytes].copy_(flat)
        yield buffer
    if (extra := next(named_params, None)) is not None:
        raise RunError(f"push: {extra[0]} came without having been announced")


def _send(group: GlooGroup, buffer: Any, answer: Future[None]) -> None:
    """Send one buffer, unless the server answers its request with a fault first: then it receives nothing, and gloo
    has no way to call off a send, which would last until its limit."""
    sending = _aside("send", lambda: group.broadcast(buffer))
    wait([sending, answer], return_when=FIRST_COMPLETED)
    if not sending.done():
        answer.result()
    sending.result()


def _post_aside(client: Any, route: str, body: dict[str, Any]) -> Future[None]:
    """POST beside what this thread does, and without TRL's retries: a second request would have a worker wait for bytes
    that nobody sends any more."""
    import requests

    def post() -> None:
        with requests.Session() as session:
            response = session.post(f"{client.base_url}{route}", json=body, timeout=(JOIN_TIMEOUT_S, None))
        if response.status_code != 200:
            # A server that fails is started again, and so is training then; one that refuses would refuse once more.
            kind = NotReadyError if response.status_code >= 500 else RunError
            raise kind(f"{client.base_url}{route}: HTTP {response.status_code}, {response.text[:500]}")

    return _aside(f"POST {route}", post)


def _aside(name: str, work: Callable[[], None]) -> Future[None]:
    """Run `work` in a thread that does not keep the process alive, as those of a pool would."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def _raise_the_servers_reason(answer: Future[None], patience_s: float = 10.0) -> None:
    """Raise what the server answered, if it answers with a fault soon; it says more than a connection that closed."""
    try:
        answer.result(patience_s)
    except TimeoutError:
        return
