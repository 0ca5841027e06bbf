"""The server under test: etcd, Leaseway, or Leaseway as a gateway on Oxia, as SUBJECT says."""

import ctypes
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
READY = b"ready to serve client requests"
START_SECONDS = 60


class Failure(Exception):
    """The client could not be built, or its server did not start."""


def subject():
    return os.environ.get("SUBJECT", "etcd")


def end_with_parent():
    """In a child: the kernel ends it when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def last_line(command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Failure(f"{command[0]} failed")
    return result.stdout.splitlines()[-1]


def etcd_tools():
    return Path(os.environ.get("ETCD_BIN_DIR") or last_line([ROOT / "compat-tests/tools/build-etcd.sh"]))


_given = set()


def free_port():
    """A port that this process has not given out before, below those that outgoing connections get."""
    for _ in range(1000):
        port = random.randrange(15_000, 32_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
    raise Failure("no free port")


class Server:
    """The subject, with a data directory of its own; a context manager. What is in `flags` comes last on the
    command line, and so counts instead of what is there by default. Gateways whose `keyspace` is the same
    serve the same data."""

    def __init__(self, directory, flags=(), keyspace=None):
        self.directory = Path(directory)
        self.flags = [str(flag) for flag in flags]
        self.keyspace = str(keyspace or directory)
        self.process = None
        self.launches = 0

    def __enter__(self):
        for attempt in range(3):
            self.prepare(attempt)
            if self.resume():
                return self
            self.stop()
        raise Failure("the server did not start:\n" + self.log.read_text(errors="replace")[-3000:])

    def __exit__(self, *_):
        self.stop()

    def prepare(self, attempt=0):
        """Chooses addresses and a data directory."""
        self.port = free_port()
        self.data = self.directory / f"data-{attempt}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.command = [*self.program(), "--name=subject", f"--data-dir={self.data}",
                        f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
                        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                        f"--initial-cluster=subject={peer}", *self.flags]

    def program(self):
        if subject() == "etcd":
            return [etcd_tools() / "etcd"]
        program = [os.environ.get("LEASEWAY_BIN") or ROOT / "target/release/leaseway"]
        if subject() == "oxia":
            keyspace = hashlib.sha256(self.keyspace.encode()).hexdigest()[:32]
            program.append(f"--backend=oxia://{os.environ['OXIA_ADDRESSES']}/default?keyspace={keyspace}")
        return program

    def spawn(self):
        """Starts the process, on the addresses and data that it had before."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / f"server-{self.port}-{self.launches}.log"
        self.launches += 1
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, preexec_fn=end_with_parent)

    def await_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if READY in self.log.read_bytes():
                return True
            time.sleep(0.02)
        return False

    def resume(self):
        """Starts the process and waits until it serves; whether it does."""
        self.spawn()
        return self.await_ready()

    def stop(self):
        """Kills it. Whoever waits for it with a signal that stops it is not waited for."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        secure = any(flag.startswith("--cert-file=") for flag in self.flags)
        return f"{'https' if secure else 'http'}://{self.endpoint}"
