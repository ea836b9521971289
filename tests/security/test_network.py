"""Attacks over the network, and by other users of the machine on what listens there."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import pickle
import queue
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import AuthenticationError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from burnish.distributed import handshake, ray, torchrun
from burnish.distributed.channel import Channel
from burnish.distributed.handshake import MAGIC, NONCE, PROOF, RANK, Listener, connect, try_connect
from burnish.distributed.processes import Processes
from burnish.distributed.rendezvous import exchange_proofs, open_store, reserve_address
from burnish.distributed.secret import cluster_secret, runtime_folder
from burnish.distributed.torchrun import Torchrun
from burnish.distributed.weights import Endpoint, _join, receive
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import UserError
from burnish.http import Client, InvalidResponse, ResponseTooLong
from burnish.network import bind, join_address, listens, split_address
from burnish.reward.sandbox.fusion import FusionRunner
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.settings import RewardSettings
from burnish.rollout.engine import EngineDied
from burnish.rollout.engines.http import HttpClient, Refused
from burnish.rollout.engines.private import KEY_VARIABLE, private_stores
from burnish.rollout.engines.process import ServerProcess
from burnish.rollout.engines.sglang.server import Server, check_arguments
from burnish.rollout.engines.vllm.auth import RequireKey
from burnish.storage import local_path

from .attacks import attack
from .peers import Bomb, drip, endless, is_loopback, listening_hosts, says, serving, silent

SECRET = "s" * 40
PATIENCE = 30.0  # seconds; no attack may make a worker wait, so tests that pass never do


# --- channels between the controller and its workers ---


@pytest.fixture(params=["unix", "tcp"])
def listener(request, monkeypatch):
    """Waits for two workers, for ever if a handshake is silent; at a unix socket, or as for several machines."""
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    one = Listener(None if request.param == "unix" else "127.0.0.1", 2, timeout=600)
    yield one
    one.close()
    if one.folder is not None:
        for file in one.folder.iterdir():
            file.unlink()
        one.folder.rmdir()


def stranger(listener: Listener) -> socket.socket:
    """A connection to the controller by somebody who does not know the secret."""
    if listener.folder is None:
        return socket.create_connection(split_address(listener.address), PATIENCE)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(PATIENCE)
    peer.connect(listener.address)
    return peer


def assert_works(listener: Listener, rank: int = 0) -> tuple[Channel, Channel]:
    """A worker is let in at once, and both sides understand each other."""
    worker = Channel(connect(listener.address, rank))
    number, connection = listener.connected.get(timeout=PATIENCE)
    controller = Channel(connection)
    controller.send({"number": number})
    assert worker.receive() == {"number": rank}
    worker.send("x" * 100_000)
    assert controller.receive() == "x" * 100_000
    return controller, worker


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def send_garbage(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.sendall(os.urandom(1 << 16))
    peer.close()


def send_http(peer: socket.socket) -> None:
    peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\nAccept: */*\r\n\r\n" + b" " * 100)
    peer.close()


def stay_silent(peer: socket.socket) -> None:
    SILENT.append(peer)


SILENT: list[socket.socket] = []  # connections that stay open


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(socket.socket.close, marks=attack("network", "worker channel: port scan during start")),
        pytest.param(reset, marks=attack("network", "worker channel: connections that are reset during start")),
        pytest.param(send_http, marks=attack("network", "worker channel: HTTP requests during start")),
        pytest.param(send_garbage, marks=attack("network", "worker channel: garbage during start")),
        pytest.param(stay_silent, marks=attack("network", "worker channel: silent connections during start")),
    ],
)
def test_strangers_do_not_end_or_delay_a_start(listener, act):
    for _ in range(100):
        try:
            act(stranger(listener))
        except OSError:
            continue  # refused: even better
    assert_works(listener)
    act(stranger(listener))
    assert_works(listener, 1)
    while SILENT:
        SILENT.pop().close()


@attack("network", "worker channel: a handshake fed byte by byte, for ever")
def test_a_handshake_has_one_deadline(monkeypatch):
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    slow = Listener("127.0.0.1", 1, timeout=0.3)
    with stranger(slow) as peer:
        peer.recv(len(MAGIC) + NONCE, socket.MSG_WAITALL)
        with pytest.raises(OSError):  # within the 68 bytes that a worker sends
            for _ in range(60):
                time.sleep(0.02)
                peer.sendall(b"x")
    assert_works(slow)
    slow.close()


def proof(secret: bytes, side: bytes, fields: bytes) -> bytes:
    return handshake._proof(secret, side, fields)


def answer_greeting(peer: socket.socket, secret: bytes, side: bytes = b"worker", rank: int = 0) -> bytes:
    """As a worker would; the bytes that were sent."""
    nonce = peer.recv(len(MAGIC) + NONCE, socket.MSG_WAITALL)[len(MAGIC) :]
    own = bytes(NONCE) + RANK.pack(rank)
    answer = own + proof(secret, side, nonce + own)
    peer.sendall(answer)
    return answer


def assert_refused(listener: Listener, peer: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert peer.recv(1) == b""
    peer.close()
    with pytest.raises(queue.Empty):
        listener.connected.get_nowait()
    assert_works(listener)


@attack("network", "worker channel: a worker that guesses the secret")
def test_a_wrong_secret_is_refused(listener):
    peer = stranger(listener)
    answer_greeting(peer, b"guess" * 8)
    assert_refused(listener, peer)


@attack("network", "worker channel: a pickle instead of a proof")
def test_nothing_is_unpickled_before_the_proof(listener, tmp_path):
    peer = stranger(listener)
    peer.recv(len(MAGIC) + NONCE, socket.MSG_WAITALL)
    payload = pickle.dumps(Bomb(tmp_path / "ran"))
    peer.sendall(struct.pack("!i", len(payload)) + payload + bytes(200))
    assert_refused(listener, peer)
    assert not (tmp_path / "ran").exists()


@attack("network", "worker channel: the handshake of a worker, recorded and replayed")
def test_a_handshake_cannot_be_replayed(listener):
    secret = listener._secret
    first = stranger(listener)
    recorded = answer_greeting(first, secret, rank=1)
    assert len(first.recv(PROOF, socket.MSG_WAITALL)) == PROOF
    listener.connected.get(timeout=PATIENCE)
    peer = stranger(listener)
    peer.recv(len(MAGIC) + NONCE, socket.MSG_WAITALL)
    peer.sendall(recorded)
    assert_refused(listener, peer)
    first.close()


@attack("network", "worker channel: the controller's own proof, reflected")
def test_the_two_sides_prove_different_things(listener):
    peer = stranger(listener)
    answer_greeting(peer, listener._secret, side=b"controller")
    assert_refused(listener, peer)


@attack("network", "worker channel: a second worker of one rank")
def test_a_rank_connects_once(listener):
    _, worker = assert_works(listener, 1)
    peer = stranger(listener)
    answer_greeting(peer, listener._secret, rank=1)
    assert_refused(listener, peer)
    other = stranger(listener)
    answer_greeting(other, listener._secret, rank=7)
    assert other.recv(1) == b""
    worker.close()


def fake_controller(answer):
    """A stranger's listener that greets like a controller; answer(what the worker sent) is its proof."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, server:
            connection.sendall(MAGIC + bytes(NONCE))
            sent = connection.recv(NONCE + RANK.size + PROOF, socket.MSG_WAITALL)
            connection.sendall(answer(sent))

    threading.Thread(target=serve, daemon=True).start()
    return join_address(*server.getsockname())


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda sent: bytes(PROOF), marks=attack("network", "rank: a controller that guesses its proof")),
        pytest.param(lambda sent: sent[-PROOF:], marks=attack("network", "rank: a controller that reflects the proof")),
        pytest.param(
            lambda sent: proof(b"x" * 40, b"controller", bytes(NONCE) + sent[:-PROOF]),
            marks=attack("network", "rank: a controller with another secret"),
        ),
    ],
)
def test_a_rank_obeys_no_stranger(answer, monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    address = fake_controller(lambda sent: answer(sent) + struct.pack("!i", len(bomb)) + bomb)
    with pytest.raises(AuthenticationError, match="does not know the secret"):
        try_connect(address, 0)
    assert not (tmp_path / "ran").exists()


@attack("network", "rank: something else than a controller at the address")
def test_a_rank_notices_that_it_reached_something_else(monkeypatch):
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        threading.Thread(
            target=lambda: server.accept()[0].sendall(b"220 mail.example.org ESMTP ready to serve you, friend\r\n"),
            daemon=True,
        ).start()
        with pytest.raises(AuthenticationError, match="not a Burnish controller"):
            try_connect(join_address(*server.getsockname()), 0)


class Relay:
    """Between a worker and the controller: passes the handshake on, then changes what the controller sends."""

    def __init__(self, address: str, change) -> None:
        self.change = change
        self._target = split_address(address)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = join_address(*self._server.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        worker, _ = self._server.accept()
        controller = socket.create_connection(self._target)
        threading.Thread(target=self._copy, args=(worker, controller), daemon=True).start()
        worker.sendall(controller.recv(len(MAGIC) + NONCE, socket.MSG_WAITALL))
        worker.sendall(controller.recv(PROOF, socket.MSG_WAITALL))
        messages = []
        with contextlib.suppress(OSError, struct.error):
            while True:
                frames = [self._frame(controller), self._frame(controller)]  # the hash, and the message
                messages.append(frames)
                for frame in self.change(messages):
                    worker.sendall(frame)

    @staticmethod
    def _frame(connection: socket.socket) -> bytes:
        head = connection.recv(4, socket.MSG_WAITALL)
        return head + connection.recv(struct.unpack("!i", head)[0], socket.MSG_WAITALL)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)


def inject(messages):
    """Nothing of the controller's: a pickle of the attacker's, with the hash of the true message."""
    bomb = pickle.dumps(Bomb(Path(os.environ["BOMB"])))
    return [messages[-1][0], struct.pack("!i", len(bomb)) + bomb]


@pytest.mark.parametrize(
    ("change", "num_true"),
    [
        pytest.param(inject, 0, marks=attack("network", "several machines: a message replaced on its way")),
        pytest.param(
            lambda m: [*m[0]] if len(m) > 1 else m[0],
            *(1,),
            marks=attack("network", "several machines: a message replayed on its way"),
        ),
        pytest.param(
            lambda m: m[1] if len(m) == 2 else [],
            *(0,),
            marks=attack("network", "several machines: a message dropped on its way"),
        ),
    ],
)
def test_messages_between_machines_cannot_be_changed(change, num_true, monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    monkeypatch.setenv("BOMB", str(tmp_path / "ran"))
    listener = Listener("127.0.0.1", 1)
    worker = Channel(connect(Relay(listener.address, change).address, 0))
    controller = Channel(listener.connected.get(timeout=PATIENCE)[1])
    controller.send("first")
    controller.send("second")
    assert [worker.receive() for _ in range(num_true)] == ["first"][:num_true]
    with pytest.raises(OSError, match="altered on its way"):
        worker.receive()
    assert not (tmp_path / "ran").exists()
    listener.close()
    controller.close()


@attack("network", "worker channel: another user at the unix socket or its secret")
def test_only_this_user_reaches_the_socket_and_the_secret():
    listener = Listener(None, 1)
    folder = Path(listener.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    for change in (0o640, 0o604, 0o666):
        (folder / "secret").chmod(change)
        with pytest.raises(UserError, match="must be a regular file of user"):
            try_connect(listener.address, 0)
    (folder / "secret").chmod(0o600)
    assert_works(listener)
    listener.close()


@attack("network", "a group of workers: what listens, and what every user sees in the list of processes")
def test_workers_of_one_machine_listen_on_loopback_only(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    before = listening_hosts(os.getpid())
    group = WorkerGroup(["rank 0", "rank 1"], Processes())
    try:
        folder, address = group._folder, group.new_rendezvous()
        secret = (folder / "secret").read_bytes()
        infos = [(rank, 2, address) for rank in range(2)]
        group.build("tests.security.peers:Rank", infos)
        assert group.call("sum") == [1.0, 1.0]
        assert listening_hosts(os.getpid()) == before
        for name in group.names:
            pid = group.starter.pid(name)
            hosts = listening_hosts(pid)
            assert hosts and all(map(is_loopback, hosts)), "gloo listens, on loopback"
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert secret not in line and bytes.fromhex(secret.decode()) not in line
    finally:
        group.close()
    assert not folder.exists()


# --- the secret that several machines share ---


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(
            lambda path: (path.write_text(SECRET), path.chmod(0o644)),
            *("mode 644",),
            marks=attack("network", "shared secret: a file that others can read"),
        ),
        pytest.param(
            lambda path: (path.with_name("other").write_text(SECRET), path.symlink_to(path.with_name("other"))),
            *("symbolic link",),
            marks=attack("network", "shared secret: a link in its place"),
        ),
        pytest.param(
            lambda path: os.mkfifo(path, 0o600),
            *("regular file",),
            marks=attack("network", "shared secret: a named pipe in its place"),
        ),
        pytest.param(
            lambda path: (path.write_text("short"), path.chmod(0o600)),
            *("32 are needed",),
            marks=attack("network", "shared secret: one that can be guessed"),
        ),
        pytest.param(
            lambda path: (path.write_bytes(b"x" * 10_000), path.chmod(0o600)),
            *("longer than",),
            marks=attack("network", "shared secret: a huge file in its place"),
        ),
    ],
)
def test_a_secret_that_is_none_is_refused(make, problem, monkeypatch, tmp_path):
    path = tmp_path / "secret"
    make(path)
    monkeypatch.delenv("BURNISH_SECRET", raising=False)
    monkeypatch.setenv("BURNISH_SECRET_FILE", str(path))
    with pytest.raises((UserError, OSError), match=problem):
        cluster_secret()


@attack("network", "shared secret: what the controller creates, and what a machine without one is told")
def test_the_controller_creates_a_private_secret(monkeypatch, tmp_path):
    for name in ("BURNISH_SECRET", "BURNISH_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UserError, match="does not exist on this one") as caught:
        cluster_secret()
    assert "BURNISH_SECRET_FILE" in caught.value.hint
    secret = cluster_secret(create=True)
    assert secret == cluster_secret(create=True) == cluster_secret() and len(secret) == 64
    file = tmp_path / "burnish" / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


# --- torchrun ---


@pytest.fixture
def ranks_of_torchrun(monkeypatch, tmp_path):
    """ranks_of_torchrun(rank, machines): this process is one of two of torchrun's; a real store is at its address."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("BURNISH_SECRET", SECRET)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(torchrun, "PATIENCE", 2.0)

    def become(rank, machines=1):
        given = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2 // machines}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_RUN_ID": "none"}
        for name, value in given.items():
            monkeypatch.setenv(name, str(value))
        return store

    return become


class NoRankZero(Torchrun):
    """Starts no process of its own."""

    def __init__(self):
        super().__init__()
        self._rank_0 = SimpleNamespace(start=lambda names, address: None, stop=lambda: None)


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param(1, marks=attack("network", "torchrun: the secret, read from its store")),
        pytest.param(2, marks=attack("network", "torchrun on several machines: the secret, read from its store")),
    ],
)
def test_the_store_holds_no_secret(ranks_of_torchrun, machines):
    store = ranks_of_torchrun(0, machines)
    listener = Listener(None if machines == 1 else "127.0.0.1", 2)
    starter = NoRankZero()
    starter.start(["rank 0", "rank 1"], listener.address)
    starter.poll()
    values = [store.get(key) for key in store.list_keys() if key.startswith("burnish")]
    assert values == ([] if machines == 1 else [listener.address.encode()])
    starter.stop()
    listener.close()


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("fake", marks=attack("network", "torchrun: a stranger's controller in its store")),
        pytest.param(b"\xff" * 5000, marks=attack("network", "torchrun: garbage in its store")),
        pytest.param("/elsewhere", marks=attack("network", "torchrun: a stranger's path in its store")),
        pytest.param("127.0.0.1:99999", marks=attack("network", "torchrun: a port that is none in its store")),
    ],
)
def test_a_rank_waits_for_the_true_controller(ranks_of_torchrun, monkeypatch, entry, tmp_path):
    """The entry of a stranger is there first; the controller announces itself again."""
    monkeypatch.setattr(torchrun, "PATIENCE", PATIENCE)
    served = []
    monkeypatch.setattr(torchrun, "serve", lambda address, rank, connection: served.append((address, rank)))
    monkeypatch.setattr(torchrun, "controller_host", lambda: "127.0.0.1")
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    false = fake_controller(lambda sent: bytes(PROOF) + struct.pack("!i", len(bomb)) + bomb)
    store = ranks_of_torchrun(1, machines=2)
    store.set(torchrun.STORE_KEY, false if entry == "fake" else entry)
    listener = Listener("127.0.0.1", 2)
    starter = NoRankZero()
    starter._address = listener.address
    threading.Timer(0.5, starter.poll).start()
    with pytest.raises(SystemExit):
        torchrun.serve_if_not_main()
    assert served == [(listener.address, 1)] and not (tmp_path / "ran").exists()
    listener.close()


@attack("network", "torchrun on one machine: entries in its store")
def test_on_one_machine_the_store_is_not_read(ranks_of_torchrun):
    store = ranks_of_torchrun(1)
    store.set(torchrun.STORE_KEY, "127.0.0.1\n1\n00\nrank 0\nrank 1")
    with pytest.raises(UserError, match="found no controller within 2 s"):
        torchrun.serve_if_not_main()


@attack("network", "torchrun on one machine: an announcement that others can write")
def test_an_announcement_of_others_is_refused(ranks_of_torchrun, tmp_path):
    ranks_of_torchrun(1)
    file = torchrun._announcement()
    assert file.parent == tmp_path / "burnish" and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text("/elsewhere")
    file.chmod(0o666)
    with pytest.raises(UserError, match="must be a regular file of user"):
        torchrun.serve_if_not_main()


@attack("network", "torchrun on one machine: a folder of others, or a link, where the private folder should be")
def test_a_runtime_folder_of_others_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "open" / "burnish").mkdir(parents=True)
    (tmp_path / "open" / "burnish").chmod(0o777)
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "burnish").symlink_to(tmp_path / "private")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    for name in ("open", "linked"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / name))
        assert runtime_folder() == tmp_path / "cache" / "run"


# --- process groups ---


def joined(address: str, rank: int, key: bytes) -> str:
    """The outcome of joining a real gloo group of two."""
    try:
        _join(Endpoint(address, rank, 2, "gloo", 1, 60.0, key), torch.device("cpu"))
    except RuntimeError as error:
        return str(error)
    return "joined"


@attack("network", "process group: a stranger's process as a rank")
def test_a_rank_that_does_not_know_the_key_is_noticed(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(joined, f"file:{tmp_path}/true", rank, b"key") for rank in range(2)]
        assert [outcome.result(PATIENCE) for outcome in outcomes] == ["joined", "joined"]
        first, second = (pool.submit(joined, f"file:{tmp_path}/false", rank, b"k%d" % rank) for rank in range(2))
        assert "a process that is not of this run answered as rank 1" in first.result(PATIENCE)
        assert "a process that is not of this run answered as rank 0" in second.result(PATIENCE)


@attack("network", "process group: proofs of one pair of ranks, used for another")
def test_a_proof_is_for_one_pair_and_one_group():
    """A stranger sends back what it was sent, and what another group's rank was sent."""
    sent = {}

    def send(tensor, rank):
        sent[rank] = tensor.clone()

    def reflect(tensor, rank):
        tensor.copy_(torch.zeros(32, dtype=torch.uint8) if rank not in sent else sent[rank])

    with pytest.raises(RuntimeError, match="answered as rank 1"):
        exchange_proofs(0, 2, b"key", "a", send, reflect)
    with pytest.raises(RuntimeError, match="answered as rank 1"):
        exchange_proofs(0, 2, b"key", "a", send, reflect)  # now it has a proof to reflect

    def answer(label):
        def receive(tensor, rank):
            tensor.copy_(proof_of(b"key", label, 0, 1))

        return receive

    assert exchange_proofs(1, 2, b"key", "b", send, answer("b")) is None
    with pytest.raises(RuntimeError, match="answered as rank 0"):
        exchange_proofs(1, 2, b"key", "b", send, answer("a"))


def proof_of(key: bytes, label: str, sender: int, receiver: int) -> torch.Tensor:
    sent = {}
    with pytest.raises(RuntimeError):
        exchange_proofs(
            sender, 2, key, label, lambda tensor, rank: sent.update({rank: tensor}), lambda tensor, rank: None
        )
    return sent[receiver]


@attack("network", "process group: torch's store beyond one address")
def test_a_store_between_machines_listens_at_one_address():
    with socket.socketpair()[0], socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        address = reserve_address(connection.fileno())
        before = len(listening_hosts(os.getpid()))
        store = open_store(address, 0, 1, timedelta(seconds=10))
        store.set("a", "b")
        hosts = listening_hosts(os.getpid())
        assert len(hosts) == before and all(map(is_loopback, hosts))
        connection.close()


class Tensors:
    """A group whose sender describes tensors with a pickle."""

    def __init__(self, description: bytes) -> None:
        self.description, self.device, self.num_headers = description, torch.device("cpu"), 0

    def header(self) -> tuple[int, int]:
        return len(self.description), 4

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        data = self.description if len(tensor) == len(self.description) else bytes(4)
        return tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


@attack("network", "weight transfer: a pickle as the description of tensors")
def test_descriptions_of_weights_are_not_pickles(monkeypatch, tmp_path):
    group = Tensors(pickle.dumps(Bomb(tmp_path / "ran")))
    monkeypatch.setattr("burnish.distributed.weights._join", lambda endpoint, device: group)
    with pytest.raises(ValueError):
        list(receive(Endpoint("file:x", 1, 2, "gloo", 1), torch.device("cpu")))
    assert not (tmp_path / "ran").exists()


# --- Ray ---


@attack("network", "Ray: a cluster that another user announced on this machine")
def test_a_cluster_of_another_user_is_not_joined(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert ray.find_cluster({}) == "10.0.0.1:6379"
    assert ray.find_cluster({"address": "local"}) is None, "a new one was asked for"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert ray.find_cluster({}) is None


# --- HTTP clients ---

OK = b"HTTP/1.1 200 OK\r\n"
LIMITS = {"timeout": 0.5, "max_bytes": 1 << 20}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(silent, TimeoutError, marks=attack("network", "HTTP: no answer")),
        pytest.param(drip(b"HTTP"), TimeoutError, marks=attack("network", "HTTP: a status line byte by byte")),
        pytest.param(drip(OK + b"X: "), TimeoutError, marks=attack("network", "HTTP: a header byte by byte")),
        pytest.param(
            drip(OK, b"X: y\r\n"), (TimeoutError, ResponseTooLong), marks=attack("network", "HTTP: headers for ever")
        ),
        pytest.param(
            drip(OK + b"Content-Length: 100000\r\n\r\n"),
            *(TimeoutError,),
            marks=attack("network", "HTTP: a body byte by byte"),
        ),
        pytest.param(
            drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            *(TimeoutError,),
            marks=attack("network", "HTTP: a body chunk by chunk"),
        ),
        pytest.param(
            drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            *((TimeoutError, InvalidResponse),),
            marks=attack("network", "HTTP: interim responses for ever"),
        ),
        pytest.param(
            endless(OK + b"X: ", b"x"), ValueError, marks=attack("network", "HTTP: a header line without end")
        ),
        pytest.param(
            says(OK + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n"),
            *(ResponseTooLong,),
            marks=attack("network", "HTTP: a thousand headers"),
        ),
        pytest.param(endless(OK + b"\r\n", b"x"), ResponseTooLong, marks=attack("network", "HTTP: a body without end")),
        pytest.param(
            says(OK + b"Content-Length: 999999999999999\r\n\r\n"),
            *(ResponseTooLong,),
            marks=attack("network", "HTTP: a huge length"),
        ),
        pytest.param(
            says(OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n"),
            *(ResponseTooLong,),
            marks=attack("network", "HTTP: a huge chunk"),
        ),
        pytest.param(
            says(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"),
            *(InvalidResponse,),
            marks=attack("network", "HTTP: a chunk of negative length"),
        ),
        pytest.param(
            says(OK + b"Content-Length: -1\r\n\r\n{}"),
            *(InvalidResponse,),
            marks=attack("network", "HTTP: a negative length"),
        ),
        pytest.param(
            says(b"220 mail.example.org ESMTP\r\n"),
            *(InvalidResponse,),
            marks=attack("network", "HTTP: another protocol"),
        ),
    ],
)
def test_a_hostile_server_cannot_hold_or_fill_the_client(answer, error):
    with serving(answer) as server, pytest.raises(error):
        Client(f"{server.url}/x").call("POST", "", b"{}", **LIMITS)


@attack("network", "HTTP: a compressed bomb")
def test_nothing_is_decompressed():
    body = gzip.compress(bytes(1 << 24))
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(says(OK + head + body)) as server:
        response = Client(server.url).call("GET", "/", b"", timeout=PATIENCE, max_bytes=1 << 20)
    assert response.body == body
    assert b"Accept-Encoding: identity" in server.requests[0]


def score(url: str) -> str:
    """The problem that a reward server's answer makes."""
    from burnish.reward.remote import RemotePool
    from burnish.reward.sample import Sample

    settings = RewardSettings(remote_url=(url,), remote_timeout=0.5, remote_retries=1)
    pool = RemotePool(settings, lambda job, outcome: None)
    outcome = pool._outcome(Sample("s", "r", "1", {}, "row", 0, prompt="p", query="q"), 0)
    pool.close()
    return outcome.text


def run_program(url: str) -> str:
    """The problem that a sandbox service's answer makes."""
    runner = FusionRunner(SandboxSettings(url=url, timeout=0.1), pause=0.0)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_QUEUE_SECONDS", "_COMPILE_SECONDS"):
            patch.setattr(f"burnish.reward.sandbox.fusion.{name}", 0.1)
        with runner.prepare("print(1)") as run:
            return run("").problem or "none"


def ask_engine(url: str) -> str:
    """What a call to an engine's server raises."""
    with pytest.raises((EngineDied, Refused)) as caught:
        asyncio.run(HttpClient(url).post("/generate", {}, 0.5))
    return str(caught.value)


CLIENTS = {"reward": score, "sandbox": run_program, "engine": ask_engine}


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("reward", marks=attack("network", "reward server: redirect to another host")),
        pytest.param("sandbox", marks=attack("network", "sandbox service: redirect to another host")),
        pytest.param("engine", marks=attack("network", "engine server: redirect to another host")),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(client, status):
    with serving(says(OK + b"Content-Length: 2\r\n\r\n{}")) as other:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {other.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        with serving(says(head)) as server:
            assert str(status) in CLIENTS[client](server.url)
        assert (server.num_requests, other.num_requests) == (1, 0)


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("reward", marks=attack("network", "reward server: headers byte by byte")),
        pytest.param("sandbox", marks=attack("network", "sandbox service: headers byte by byte")),
        pytest.param("engine", marks=attack("network", "engine server: headers byte by byte")),
    ],
)
def test_every_client_has_a_total_deadline(client):
    with serving(drip(OK + b"X: ")) as server:
        problem = CLIENTS[client](server.url)
    assert "within" in problem or "in time" in problem or "did not answer" in problem


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("reward", marks=attack("network", "reward server: deep JSON")),
        pytest.param("sandbox", marks=attack("network", "sandbox service: deep JSON")),
    ],
)
def test_deep_json_is_an_invalid_answer(client):
    body = b"[" * 100_000
    with serving(says(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as server:
        assert CLIENTS[client](server.url) != "none"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(
            says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"),
            *("redirects to 'http://127.0.0.1:9/'",),
            marks=attack("network", "download: redirect to another host"),
        ),
        pytest.param(drip(OK + b"X: "), "TimeoutError", marks=attack("network", "download: headers byte by byte")),
    ],
)
def test_downloads_have_a_deadline_and_no_redirects(answer, problem, monkeypatch, tmp_path):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    monkeypatch.setattr("burnish.http.CALL_SECONDS", 0.5)
    with serving(answer) as server, pytest.raises(UserError, match=problem):
        local_path(f"{server.url}/train.parquet", key="data.train_files")
    assert not list(tmp_path.rglob("train.parquet"))


@attack("network", "download: more bytes than announced")
def test_downloads_end_at_the_announced_size(monkeypatch, tmp_path):
    """The request for its size is answered with ten bytes, that for the file with bytes without end."""
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))

    def answer(connection):
        if server.requests[-1].startswith(b"HEAD"):
            connection.sendall(OK + b"Content-Length: 10\r\n\r\n")
        elif len(server.requests) > 1 and server.requests[-2].startswith(b"HEAD"):
            endless(OK + b"\r\n", b"x")(connection)
        else:
            connection.sendall(OK + b"Content-Length: 10\r\nContent-Type: text/plain\r\n\r\n0123456789")

    with serving(answer) as server, pytest.raises(UserError, match="more than 10 bytes"):
        local_path(f"{server.url}/train.parquet", key="data.train_files")
    assert not list(tmp_path.rglob("train.parquet"))


@attack("network", "engine server: a line of a stream without end")
def test_lines_of_a_stream_are_bounded(monkeypatch):
    monkeypatch.setattr("burnish.rollout.engines.http.MAX_LINE", 1 << 16)

    async def read(url):
        return [line async for line in HttpClient(url).lines("/generate", {})]

    with serving(endless(OK + b"\r\ndata: ", b"x")) as server, pytest.raises(EngineDied, match="exceeds 65536 bytes"):
        asyncio.run(read(server.url))


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://host/a\r\nX: y", marks=attack("network", "HTTP: a header smuggled into the path")),
        pytest.param("http://host/a b", marks=attack("network", "HTTP: a second word in the request line")),
        pytest.param("file:///etc/passwd", marks=attack("network", "HTTP: the URL of a file")),
        pytest.param("http://", marks=attack("network", "HTTP: a URL without a host")),
    ],
)
def test_urls_that_are_none_are_refused(url):
    with pytest.raises((ValueError, AssertionError)):
        client = Client(url)
        assert "\r" not in client.path and " " not in client.path
        raise AssertionError("urlsplit removed the line break")


@attack("network", "HTTP: a line break in a key")
def test_a_key_cannot_smuggle_headers():
    with pytest.raises(ValueError, match="does not allow"):
        Client("http://host", bearer="key\r\nX: y")


# --- servers of vLLM and SGLang ---


def call(middleware, path, headers=(), kind="http"):
    """Status of the answer; None if the request was passed on."""
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope)

    async def send(message):
        sent.append(message)

    middleware.app = app
    asyncio.run(middleware({"type": kind, "path": path, "headers": list(headers)}, None, send))
    assert bool(passed) != bool(sent)
    return None if passed else sent[0].get("status", sent[0].get("code"))


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "k" * 64)
    return RequireKey(None)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], marks=attack("network", "vLLM server: development routes without a key")),
        pytest.param(
            [(b"authorization", b"Bearer " + b"x" * 64)],
            marks=attack("network", "vLLM server: development routes with a wrong key"),
        ),
        pytest.param(
            [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer " + b"k" * 64)],
            marks=attack("network", "vLLM server: two keys in one request"),
        ),
        pytest.param(
            [(b"x-api-key", b"k" * 64), (b"cookie", b"k" * 64)],
            marks=attack("network", "vLLM server: the key in another header"),
        ),
    ],
)
def test_every_route_of_a_server_needs_the_key(guarded, headers):
    for path in ("/collective_rpc", "/pause", "/sleep", "/inference/v1/generate", "/v1/models", "/health", "//v1"):
        assert call(guarded, path, headers) == 401
    assert call(guarded, "/ws", headers, "websocket") == 1008
    assert call(guarded, "/collective_rpc", [(b"Authorization", b"Bearer " + b"k" * 64)]) is None
    assert call(guarded, "", kind="lifespan") is None


@attack("network", "vLLM server: middleware without a key in the environment")
def test_without_a_key_nothing_is_answered(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    for given in (b"", b"Bearer ", b"Bearer", b"None", b"Bearer None"):
        assert call(RequireKey(None), "/pause", [(b"authorization", given)]) == 401


SHOW = """
import json, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.join(os.environ["BURNISH_STORES"], "made"))
names = ("BURNISH_ENGINE_KEY", "GLOO_SOCKET_IFNAME", "PYTHONPATH")
print(json.dumps({name: os.environ[name] for name in names} | {"argv": sys.argv}), flush=True)
"""


@attack("network", "engine servers: their key in the list of processes, their sockets and folders")
def test_the_key_of_a_server_is_in_no_command_line(monkeypatch, tmp_path):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    (tmp_path / "show.py").write_text(SHOW + "sys.stdin.read()")
    server = ServerProcess("test", ["show"], "http://x", {**os.environ, "PYTHONPATH": str(tmp_path)})
    while not server.log_tail():
        server.check()
        time.sleep(0.02)
    shown = json.loads(server.log_tail())
    assert shown["BURNISH_ENGINE_KEY"] == server.api_key and len(server.api_key) == 64
    assert shown["GLOO_SOCKET_IFNAME"] == "lo"
    assert (Path(shown["PYTHONPATH"].split(os.pathsep)[0]) / "burnish" / "__init__.py").is_file()
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    assert not (server.folder / "made").stat().st_mode & 0o022, "connecting needs permission to write"
    assert server.api_key.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    server.close()


@attack("network", "SGLang server: its key in the list of processes")
def test_sglang_gets_its_key_inside_the_process(tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "print(sys.argv[1:], Path('/proc/self/cmdline').read_bytes().split(b'\\0')[3:-1], __name__, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}", KEY_VARIABLE: "k" * 64}
    environment |= {"BURNISH_STORES": str(tmp_path)}
    command = [sys.executable, "-m", "burnish.rollout.engines.sglang.serve", "--port", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"['--port', '1', '--api-key', '{'k' * 64}'] [b'--port', b'1'] __main__", done.stderr


@attack("network", "SGLang server: its port, taken by another user")
def test_a_port_of_another_user_is_not_sent_the_key(monkeypatch):
    with bind("127.0.0.1") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert listens(port, os.geteuid()) and not listens(port, 12345)
        server = SimpleNamespace(port=port)
        assert Server.is_listening(server)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert not Server.is_listening(server)
    assert not listens(port, 12345), "nobody listens"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("host", marks=attack("network", "SGLang server: an argument that opens it to the network")),
        pytest.param("api_key", marks=attack("network", "SGLang server: a key of the config on the command line")),
    ],
)
def test_arguments_that_decide_who_reaches_the_server(name, monkeypatch):
    from ..sglang_server import STANDINS, python_path

    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.setenv("PYTHONPATH", python_path())
    with pytest.raises(UserError, match="Burnish sets this argument itself"):
        check_arguments({name: "0.0.0.0"}, "rollout.engine_kwargs.sglang")
    for module in [module for module in sys.modules if module.split(".")[0] == "sglang"]:
        del sys.modules[module]


@attack("network", "engines: the store of their process groups")
def test_groups_of_engines_meet_in_private_files(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "BURNISH_STORES"):
        monkeypatch.delenv(name, raising=False)
    before = listening_hosts(os.getpid())
    with private_stores():
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)
        new = listening_hosts(os.getpid())
        dist.destroy_process_group()
    for host in before:
        new.remove(host)
    assert new and all(map(is_loopback, new)), "gloo listens, on loopback; there is no TCPStore"
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "BURNISH_STORES"} & os.environ.keys()
    store, rank, size = next(dist.rendezvous("tcp://127.0.0.1:0", 0, 1))
    assert isinstance(store, dist.TCPStore) and (rank, size) == (0, 1), "others' groups are as before"
