#!/usr/bin/env python3
"""The goodput of one plain TCP stream, in bytes a second.

    tcp_stream.py receive PORT             prints a JSON line when the sender ends
    tcp_stream.py send ADDRESS PORT SECONDS

Counted on the receiver, without the first half second (slow start).
"""

import json
import socket
import sys
import time

BLOCK = 1 << 20


def receive(port):
    with socket.create_server(("", port)) as server:
        connection, _ = server.accept()
    buf = bytearray(BLOCK)
    first = time.perf_counter()
    start = counted = None
    while True:
        n = connection.recv_into(buf)
        now = time.perf_counter()
        if n == 0:
            break
        if start is not None:
            counted += n
            last = now
        elif now - first > 0.5:
            start, counted, last = now, 0, now
    print(json.dumps({"goodput": counted / (last - start)}))


def send(address, port, seconds):
    block = bytes(BLOCK)
    end = time.perf_counter() + seconds
    with socket.create_connection((address, port)) as connection:
        while time.perf_counter() < end:
            connection.sendall(block)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
