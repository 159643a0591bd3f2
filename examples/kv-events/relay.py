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

HEARTBEAT_SECONDS = 5


class Relay:
    def __init__(self, arguments):
        self.to = urllib.parse.urlsplit(arguments.to)
        query = urllib.parse.urlencode({"model": arguments.model or "", "rank": arguments.rank})
        self.path = f"/warmpath/v1/kv-events/{urllib.parse.quote(arguments.pod, safe=':[]')}?{query}"
        self.token = os.environ.get("WARMPATH_TOKEN")
        self.http = None
        self.next = None
        context = zmq.Context()
        self.events = context.socket(zmq.SUB)
        self.events.set(zmq.RCVHWM, 100_000)
        self.events.subscribe(arguments.topic)
        self.events.connect(arguments.events)
        self.replays = None
        if arguments.replay:
            # Not REQ: one question has many answers.
            self.replays = context.socket(zmq.DEALER)
            self.replays.connect(arguments.replay)

    def run(self):
        while True:
            if self.events.poll(HEARTBEAT_SECONDS * 1000):
                _, sequence, payload = self.events.recv_multipart()
                self.deliver(int.from_bytes(sequence, "big"), payload)
            elif self.next is not None:
                self.heartbeat()

    def deliver(self, sequence, payload):
        """Posts a batch, after those before it that Warmpath lacks."""
        status, answer = self.post(sequence, payload)
        if status == 409:
            print(f"batches from {answer['next']} to {sequence - 1} are missing, replaying", file=sys.stderr)
            for number, missed in self.replay(answer["next"], sequence):
                self.post(number, missed, accept_gap=True)
            status, answer = self.post(sequence, payload, accept_gap=True)
        if status != 202:
            print(f"batch {sequence} is refused: {answer}", file=sys.stderr)
        self.next = sequence + 1

    def heartbeat(self):
        """Says that nothing was missed, or brings what was: another worker of Envoy may have taken over."""
        status, answer = self.post(self.next, b"")
        if status == 409:
            for number, missed in self.replay(answer["next"], self.next):
                self.post(number, missed, accept_gap=True)

    def replay(self, first, end):
        """Batches of the engine's buffer, from `first` on."""
        if self.replays is None:
            return
        self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        while self.replays.poll(2000):
            *_, sequence, payload = self.replays.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            if number < 0:
                return
            if first <= number < end:
                yield number, payload

    def post(self, sequence, payload, accept_gap=False):
        """Posts until Warmpath has taken or refused it; meanwhile events wait in the socket."""
        headers = {"content-type": "application/msgpack", "x-warmpath-sequence": str(sequence)}
        if accept_gap:
            headers["x-warmpath-gap"] = "accept"
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        while True:
            try:
                if self.http is None:
                    kind = http.client.HTTPSConnection if self.to.scheme == "https" else http.client.HTTPConnection
                    self.http = kind(self.to.netloc, timeout=10)
                self.http.request("POST", self.path, payload, headers)
                answer = self.http.getresponse()
                body = answer.read()
                if answer.status != 503:
                    return answer.status, json.loads(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                print(f"{self.to.netloc}: {error!r}, trying again", file=sys.stderr)
                self.http = None
            time.sleep(1)


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
