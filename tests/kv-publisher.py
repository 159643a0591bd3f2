"""A publisher of KV events as engines have it: libzmq's PUB, which connects. Each line of standard input is a message, its frames in
hexadecimal and set apart by spaces. Says "open" once the other end has answered, and "closed" when it is gone."""
import sys
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

socket = zmq.Context().socket(zmq.PUB)
socket.set(zmq.RECONNECT_IVL, 50)
socket.set(zmq.SNDHWM, 0)
for option in sys.argv[2:]:
    name, value = option.split("=")
    socket.set(getattr(zmq, name), int(value))
monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)


def watch():
    while True:
        event = recv_monitor_message(monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            time.sleep(0.1)  # The subscription follows the handshake.
        print("open" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else "closed", flush=True)


threading.Thread(target=watch, daemon=True).start()
socket.connect(sys.argv[1])
for line in sys.stdin:
    socket.send_multipart([bytes.fromhex(frame) for frame in line.rstrip("\n").split(" ")])
socket.close(linger=5000)
