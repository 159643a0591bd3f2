"""A publisher of KV events as engines have it: libzmq's PUB. Each line of standard input is a message, its frames in hexadecimal and set
apart by spaces.

usage: kv-publisher.py tcp://HOST:PORT [OPTION=VALUE…]   connects; says "open" once the other end answered, "closed" when it is gone
       kv-publisher.py bind COUNT                        binds; says "bound PORT REPLAY", and replays the last COUNT messages
"""
import collections
import sys
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message


def watch(monitor):
    while True:
        event = recv_monitor_message(monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            time.sleep(0.1)  # The subscription follows the handshake.
        print("open" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "closed", flush=True)


def replay(router, buffer):
    """As vLLM does it."""
    while True:
        client, _, start = router.recv_multipart()
        for sequence, payload in list(buffer):
            if sequence >= start:
                router.send_multipart([client, b"", sequence, payload])
        router.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])


context = zmq.Context()
socket = context.socket(zmq.PUB)
socket.set(zmq.RECONNECT_IVL, 50)
socket.set(zmq.SNDHWM, 0)
monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
threading.Thread(target=watch, args=[monitor], daemon=True).start()
buffer = collections.deque(maxlen=0)
if sys.argv[1] == "bind":
    buffer = collections.deque(maxlen=int(sys.argv[2]))
    router = context.socket(zmq.ROUTER)
    ports = socket.bind_to_random_port("tcp://127.0.0.1"), router.bind_to_random_port("tcp://127.0.0.1")
    threading.Thread(target=replay, args=[router, buffer], daemon=True).start()
    print("bound", *ports, flush=True)
else:
    for option in sys.argv[2:]:
        name, value = option.split("=")
        socket.set(getattr(zmq, name), int(value))
    socket.connect(sys.argv[1])
for line in sys.stdin:
    frames = [bytes.fromhex(frame) for frame in line.rstrip("\n").split(" ")]
    buffer.append(tuple(frames[1:]))
    socket.send_multipart(frames)
socket.close(linger=5000)
