"""Serves a broker's socket as another user, which takes root: impostor.py SOCKET HEARD. Writes to the file HEARD, a line for
each connection, how many bytes came. Must never answer."""

import os
import socket
import sys

# A uid that no machine uses.
MALLORY = 61003

path, heard = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.umask(0)
with open(heard, "w", buffering=1) as lines:
    listener.bind(path)
    # Whoever calls listen(2) is the server.
    os.setgroups([])
    os.setresgid(MALLORY, MALLORY, MALLORY)
    os.setresuid(MALLORY, MALLORY, MALLORY)
    listener.listen(64)
    while True:
        print(len(listener.accept()[0].recv(4096)), file=lines)
