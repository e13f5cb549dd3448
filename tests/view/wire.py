"""The bare protocol (libclient/protocol/PROTOCOL.md), as far as tests/view/view.py needs it, and a client with memory
that is told by JSON lines what to do. Must never check anything."""

import array
import fcntl
import json
import os
import socket
import struct

VERSION = 7
HELLO, FAILED, JOIN, REGISTER, ACQUIRE, RELEASE = 0x01, 0x03, 0x04, 0x10, 0x20, 0x26
STATUS, ALLOCATIONS, LEASES, CLIENTS, TAKEOVER, TAKEOVER_STEP = 0x80, 0x82, 0x84, 0x86, 0x88, 0x8A
JOBS, DOMAINS, LIMITS, SET_LIMIT, METRICS, TOMBSTONES = 0xA0, 0xA2, 0xA4, 0xA6, 0xA8, 0xAE
EVICT, REVOKE, DRAIN, WATCH, EVENTS = 0xB0, 0xB2, 0xB4, 0xB6, 0xB7
# libclient/protocol/src/error.rs.
NOT_PERMITTED = 5
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PATIENCE_S = 20


def message(kind, body=b"", count=0, fds=0, id=7):
    return struct.pack("<HBBHHQ", kind, VERSION, 0, count, fds, id) + body


def query(cursor=0, filter=0, value=0):
    return struct.pack("<IIQQ", cursor, filter, value, 0)


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)

    def call(self, bytes, fds=()):
        """The kind and the body of the answer, and the fds that came with it."""
        self.send(bytes, fds)
        return self.receive()

    def send(self, bytes, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([bytes], rights)

    def receive(self):
        data, controls, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(253 * 4))
        came = array.array("i")
        for _, _, content in controls:
            came.frombytes(content)
        if not data:
            return None, b"", []
        return struct.unpack_from("<H", data)[0], data[16:], list(came)


class Client:
    def __init__(self, path, name):
        self.main = Connection(path)
        hello = struct.pack("<8sHHIII16sIIII", b"fdbroker", VERSION, VERSION, 0, 0, os.getpid(), name.encode(), 5000, 0, 0, 0)
        kind, body, self.kept = self.main.call(message(HELLO, hello))
        assert kind == HELLO + 1, (kind, body)
        # Its event socket: number, role and secret.
        number, secret = struct.unpack_from("<I", body, 24)[0], struct.unpack_from("<Q", body, 48)[0]
        self.events = Connection(path)
        kind, body, _ = self.events.call(message(JOIN, struct.pack("<IIQ", number, 1, secret)))
        assert kind == JOIN + 1, (kind, body)

    def register(self, size, share):
        memfd = os.memfd_create("view", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memfd, size)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALS)
        item = struct.pack("<QQQ24sIBBBBQ64s", size, 0, size, b"", 0, 3, 1, share, 0, 0, b"")
        kind, body, _ = self.main.call(message(REGISTER, struct.pack("<II", 1, 5000) + item, 1, 1), [memfd])
        os.close(memfd)
        assert kind == REGISTER + 1, (kind, body)
        status, pid = struct.unpack_from("<HxxI", body, 16)
        return {"status": status, "pid": pid, "handle": body[32:96].hex()}

    def acquire(self, handle):
        prefix = bytes.fromhex(handle)[:32]
        kind, body, fds = self.main.call(message(ACQUIRE, struct.pack("<II", 5000, 0) + prefix, 1))
        assert kind == ACQUIRE + 1, (kind, body)
        status, lease = struct.unpack_from("<H14xQ", body)
        self.kept += fds
        return {"status": status, "lease": lease}

    def leak(self, handle):
        """Gives leases back, and keeps the fds: more than an owner may have anyway."""
        leases = [self.acquire(handle)["lease"] for _ in range(3)]
        self.main.call(message(RELEASE, struct.pack("<3Q", *leases), 3))
        return {"fd": self.kept[-1]}


def serve(path, name, channel):
    """A client that does what the lines of the channel say, until it ends."""
    client, lines = Client(path, name), channel.makefile("rw")
    print(json.dumps("ready"), file=lines, flush=True)
    for line in iter(lines.readline, ""):
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(client, what)(*arguments)), file=lines, flush=True)
