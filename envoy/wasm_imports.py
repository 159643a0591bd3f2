"""Prints a wasm module's version, size and imports, and fails on any import that isn't env.proxy_*: Envoy would refuse it."""

import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def name(data, at):
    length, at = varint(data, at)
    return data[at : at + length].decode(), at + length


def limits(data, at):
    flags = data[at]
    _, at = varint(data, at + 1)
    return varint(data, at)[1] if flags & 1 else at


def sections(data):
    """Number, start and end of each section."""
    if data[:8] != b"\0asm\1\0\0\0":
        raise SystemExit("not a wasm module")
    at = 8
    while at < len(data):
        number = data[at]
        size, at = varint(data, at + 1)
        yield number, at, at + size
        at += size


def version(data):
    """What the module's custom section warmpath.version says; None for a module without one."""
    for number, at, end in sections(data):
        if number == 0:
            title, at = name(data, at)
            if title == "warmpath.version":
                return data[at:end].decode()
    return None


def imports(data):
    for number, at, _ in sections(data):
        if number != 2:
            continue
        count, at = varint(data, at)
        for _ in range(count):
            module, at = name(data, at)
            field, at = name(data, at)
            kind = data[at]
            at += 1
            if kind == 0:
                _, at = varint(data, at)
            elif kind == 1:
                at = limits(data, at + 1)
            elif kind == 2:
                at = limits(data, at)
            else:
                at += 2
            yield module, field


def main(path):
    with open(path, "rb") as file:
        data = file.read()
    found = sorted(imports(data))
    what = f"warmpath {version(data)}, " if version(data) else ""
    print(f"{path}: {what}{len(data) / 1e6:.2f} MB, {len(found)} imports:")
    print("  " + " ".join(field for _, field in found))
    foreign = [f"{module}.{field}" for module, field in found if module != "env" or not field.startswith("proxy_")]
    if foreign:
        raise SystemExit(f"{path}: imports what Envoy may not offer: {', '.join(foreign)}")


if __name__ == "__main__":
    main(sys.argv[1])
