"""Brings the KV events of an engine that binds its publisher (tcp://*:5557) to Warmpath, by HTTP. Wants pyzmq.

Run one beside each engine. Batches that were missed are replayed from the engine's own buffer (vLLM's `replay_endpoint`); what it no
longer has is said to be missing, and the pod is uncertain until its cache is cleared or the engine restarts.
"""
import argparse
import http.client
import json
import os
import sys
import time
import urllib.parse

import zmq
from zmq.utils.monitor import recv_monitor_message

HEARTBEAT_SECONDS = 5
# Tries of one batch, a second apart, until it is given up.
TRIES = 30


class Relay:
    def __init__(self, arguments):
        self.to = urllib.parse.urlsplit(arguments.to)
        query = urllib.parse.urlencode({"model": arguments.model or "", "rank": arguments.rank})
        self.path = f"/warmpath/v1/kv-events/{urllib.parse.quote(arguments.pod, safe=':[]')}?{query}"
        self.token = os.environ.get("WARMPATH_TOKEN")
        self.http = None
        self.next = None
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.set(zmq.RCVHWM, 0)
        self.events.subscribe(arguments.topic)
        # An engine that went may be another when it is back, whatever its numbers say.
        self.breaks = self.events.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.events.connect(arguments.events)
        self.replays = arguments.replay

    def run(self):
        while True:
            arrived = self.events.poll(HEARTBEAT_SECONDS * 1000)
            while self.breaks.poll(0):
                recv_monitor_message(self.breaks)
                self.next = None
            if arrived:
                _, sequence, payload = self.events.recv_multipart()
                self.deliver(int.from_bytes(sequence, "big"), payload)
            elif self.next is not None:
                self.heartbeat()

    def deliver(self, sequence, payload):
        """Posts a batch, after those before it that Warmpath lacks."""
        is_new = self.next is None
        status, answer = self.post(sequence, payload, is_new=is_new)
        if status == 409:
            is_new = self.replay(answer["next"], sequence, is_new)
            status, answer = self.post(sequence, payload, accept_gap=True, is_new=is_new)
        if status != 202:
            print(f"batch {sequence} is refused: {answer}", file=sys.stderr)
        self.next = sequence + 1

    def heartbeat(self):
        """Says that nothing was missed, or brings what was: another worker of Envoy may have taken over."""
        status, answer = self.post(self.next, b"")
        if status == 409:
            self.replay(answer["next"], self.next, is_new=False)

    def replay(self, first, end, is_new):
        """Posts what the engine still has of the batches from `first` up to `end`. Says whether nothing was posted by one who is new."""
        print(f"batches from {first} to {end - 1} are missing, replaying", file=sys.stderr)
        for number, payload in self.kept(first, end):
            if number < end:
                self.post(number, payload, accept_gap=True, is_new=is_new)
                is_new = False
        return is_new

    def kept(self, first, end):
        """Batches of the engine's buffer, all of them before any is posted: the engine doesn't wait for its reader, and drops what the
        reader has no room for. What was dropped is asked for again."""
        batches = []
        while self.replays is not None:
            wanted = batches[-1][0] + 1 if batches else first
            part = self.ask(wanted)
            before = len(batches)
            for number, payload in part:
                # The first may be later than was asked for: what came before is not kept any more.
                if batches and number != batches[-1][0] + 1:
                    break
                batches.append((number, payload))
            if len(batches) == before or batches[-1][0] + 1 >= end:
                break
        return batches

    def ask(self, first):
        # Not REQ: one question has many answers. And a new one each time, to which no late answer comes.
        socket = self.context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, 0)
        socket.connect(self.replays)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while socket.poll(5000):
            *_, sequence, payload = socket.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            if number < 0:
                break
            batches.append((number, payload))
        socket.close(linger=0)
        return batches

    def post(self, sequence, payload, accept_gap=False, is_new=False):
        """Posts until Warmpath has taken or refused it; meanwhile events wait in the socket."""
        headers = {"content-type": "application/msgpack", "x-warmpath-sequence": str(sequence)}
        if accept_gap:
            headers["x-warmpath-gap"] = "accept"
        if is_new:
            headers["x-warmpath-publisher"] = "new"
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        for _ in range(TRIES):
            try:
                if self.http is None:
                    kind = http.client.HTTPSConnection if self.to.scheme == "https" else http.client.HTTPConnection
                    self.http = kind(self.to.netloc, timeout=10)
                self.http.request("POST", self.path, payload, headers)
                answer = self.http.getresponse()
                body = answer.read()
                if answer.status != 503:
                    return answer.status, json.loads(body)
                print(f"{self.to.netloc}: {body!r}, trying again", file=sys.stderr)
            except (OSError, http.client.HTTPException, ValueError) as error:
                print(f"{self.to.netloc}: {error!r}, trying again", file=sys.stderr)
                self.http = None
            time.sleep(1)
        return 0, "given up"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", required=True, help="the engine's publisher, such as tcp://127.0.0.1:5557")
    parser.add_argument("--replay", help="the engine's replay socket, such as tcp://127.0.0.1:5558")
    parser.add_argument("--to", required=True, help="Warmpath's listener for events, such as http://envoy:8082")
    parser.add_argument("--pod", required=True, help="the pod's name or address in Warmpath's configuration")
    parser.add_argument("--model", help="the model, where the pod's configuration doesn't say it")
    parser.add_argument("--rank", type=int, default=0, help="the data-parallel rank that publishes there (default: 0)")
    parser.add_argument("--topic", default="", help="what topics begin with (default: all)")
    Relay(parser.parse_args()).run()


if __name__ == "__main__":
    main()
