"""Writes an Envoy configuration from the template warmpath.yaml: your pods in its two places, ports and module.

It edits the template's text, so that what comes out keeps its comments and is worth reading."""

import argparse
import ipaddress
import json
import pathlib
import re
import socket
import sys

TEMPLATE = pathlib.Path(__file__).with_name("warmpath.yaml")


def address(pod):
    """IP and port of HOST:PORT. override_host compares addresses literally, so a name is resolved here, once."""
    host, _, port = pod.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SystemExit(f"--pod {pod}: not HOST:PORT")
    host = host.strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        try:
            ip = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise SystemExit(f"--pod {pod}: the name does not resolve: {error}") from error
    return ip, int(port)


def shown(ip, port):
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def configuration(path, pods, models, profile):
    config = {}
    if path:
        try:
            config = json.loads(pathlib.Path(path).read_text())
        except (OSError, ValueError) as error:
            raise SystemExit(f"--config {path}: {error}") from error
    config["pods"] = [
        {"name": f"pod-{i}", "address": shown(*pod)} | ({"models": models} if models else {})
        for i, pod in enumerate(pods, 1)
    ]
    if profile:
        config["profile"] = profile
    config.setdefault("debug_header", "x-warmpath-debug")
    return config


def replace(pattern, new, text):
    """Replaces exactly one match: a template that was changed under this script must not pass unnoticed."""
    text, count = re.subn(pattern, lambda match: new(match), text, flags=re.M)
    if count != 1:
        raise SystemExit(f"{TEMPLATE}: expected one match of {pattern!r}, found {count}")
    return text


def render(args):
    pods = [address(pod) for pod in args.pod]
    config = json.dumps(configuration(args.config, pods, args.model, args.profile), indent=2)

    def value(match):
        pad = match[1] + "  "
        return f"{match[1]}value: |\n" + "".join(f"{pad}{line}\n" for line in config.splitlines())

    def endpoints(match):
        return "".join(
            f"{match[1]}- endpoint: {{ address: {{ socket_address: {{ address: \"{ip}\", port_value: {port} }} }} }}\n"
            for ip, port in pods
        )

    text = TEMPLATE.read_text()
    text = replace(r"^( +)value: \|\n(?:\1 +.*\n)+", value, text)
    text = replace(r"^( +)- endpoint: .*\n(?:\1- endpoint: .*\n)*", endpoints, text)
    text = replace(r"address: 127\.0\.0\.1, port_value: 8080", lambda _: f"address: {args.listen}, port_value: {args.port}", text)
    text = replace(r"port_value: 9901", lambda _: f"port_value: {args.admin_port}", text)
    text = replace(r"filename: warmpath\.wasm", lambda _: f"filename: {json.dumps(args.wasm)}", text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pod", action="append", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", action="append", default=[], help="model that every pod serves; repeatable")
    parser.add_argument("--config", metavar="FILE", help="plugin configuration in JSON; its pods are replaced")
    parser.add_argument("--profile", help="profile for all requests")
    parser.add_argument("--listen", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--admin-port", type=int, default=9901)
    parser.add_argument("--wasm", default="warmpath.wasm")
    sys.stdout.write(render(parser.parse_args()))


if __name__ == "__main__":
    main()
