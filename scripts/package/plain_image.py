#!/usr/bin/env python3
"""Writes the archive of an image anew without what differs from build to build: the id and the host name of the container
that it was committed from, and the folders of Docker's first format, whose names are hashes of them.

Usage: scripts/package/plain_image.py ARCHIVE.tar TARGET.tar
"""

import hashlib
import io
import json
import sys
import tarfile

source, target = sys.argv[1:]


def member(name, size):
    """Returns the entry of a file of root, with the time 0."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as new:
    manifest = json.load(old.extractfile("manifest.json"))
    for image in manifest:
        config = json.load(old.extractfile(image["Config"]))
        for name in "container", "container_config":
            config.pop(name, None)
        config["config"]["Hostname"] = ""
        text = json.dumps(config, separators=(",", ":"), sort_keys=True).encode()
        image["Config"] = hashlib.sha256(text).hexdigest() + ".json"
        new.addfile(member(image["Config"], len(text)), io.BytesIO(text))
        for layer in image["Layers"]:
            new.addfile(member(layer, old.getmember(layer).size), old.extractfile(layer))
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True).encode()
    new.addfile(member("manifest.json", len(text)), io.BytesIO(text))
