"""Writes a module as an OCI image: an archive (image layout in a tar) with one layer, which has plugin.wasm at its root.

Of the forms that Envoy Gateway and Istio read, this is the one that every registry and container tool takes too. The same module
gives the same bytes, but for what another zlib makes of the layer: nothing in it tells when, where or by whom it was made."""

import hashlib
import io
import json
import pathlib
import re
import struct
import sys
import tarfile
import zlib

import wasm_imports

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def gzip(data):
    """Python's own writes another header with each version."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(data) + deflate.flush()
    return b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + packed + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def descriptor(kind, data, **more):
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data), **more}


def to_json(value):
    return json.dumps(value, separators=(",", ":")).encode()


def field(file, name):
    """A text of one of the Cargo.toml, which Python reads by itself only from 3.11 on."""
    found = re.search(rf'^{name} = "(.*)"$', (ROOT / file).read_text(), re.M)
    if not found:
        raise SystemExit(f"{file}: no {name}")
    return found[1]


def image(module):
    """The archive's files, and the digest of the manifest, which is that of the image."""
    version = wasm_imports.version(module)
    if not version:
        raise SystemExit("the module has no section warmpath.version; build it with ./wasm-build.sh")
    about = "org.opencontainers.image"
    annotations = {
        f"{about}.title": "warmpath",
        f"{about}.description": field("filter/Cargo.toml", "description"),
        f"{about}.version": version,
        f"{about}.licenses": field("Cargo.toml", "license"),
    }
    content = tar({"plugin.wasm": module})
    layer = gzip(content)
    # Who reads the module looks at none of this. Container engines do, and unpack what is made for them only.
    config = to_json({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": annotations},
        "rootfs": {"type": "layers", "diff_ids": [digest(content)]},
        "history": [{"created_by": "wasm-build.sh --image"}],
    })
    manifest = to_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", config),
        "layers": [descriptor("layer.v1.tar+gzip", layer)],
        "annotations": annotations,
    })
    names = {f"{about}.ref.name": version, "io.containerd.image.name": f"localhost/warmpath:{version}"}
    index = to_json({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [descriptor("manifest.v1+json", manifest, annotations=names)],
    })
    files = {"oci-layout": to_json({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    for blob in (manifest, config, layer):
        files["blobs/sha256/" + digest(blob).removeprefix("sha256:")] = blob
    return files, digest(manifest), version


def main(path, out):
    module = pathlib.Path(path).read_bytes()
    files, image_digest, version = image(module)
    pathlib.Path(out).write_bytes(tar(files))
    print(f"""{out}: an OCI image with {path} as plugin.wasm
  image   {image_digest}
  module  {digest(module)}
push it with one of these:
  skopeo copy oci-archive:{out} docker://REGISTRY/warmpath:{version}
  oras cp --from-oci-layout {out}:{version} REGISTRY/warmpath:{version}""")


if __name__ == "__main__":
    main(*sys.argv[1:])
