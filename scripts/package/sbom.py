#!/usr/bin/env python3
"""Prints the bill of materials of the two programs as CycloneDX 1.5 in JSON: each crate that is compiled into them and
each package in the files of the web interface, with version, license and checksum, and what depends on what.

Usage: sbom.py VERSION. The parts are those of `licenses.py`. The same sources give the same bytes: the time is
SOURCE_DATE_EPOCH, and the serial number follows from the content.
"""

import json
import os
import re
import sys
import uuid
from datetime import datetime, timezone
from urllib.parse import quote

# Nothing is left beside the sources.
sys.dont_write_bytecode = True
from licenses import BUNDLED_PACKAGES, PROJECT, compiled_packages

LOCKED_CHECKSUM = re.compile(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "([0-9a-f]{64})"')


def package_url(kind, name, version):
    return f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}"


def component(kind, name, version, license, repository, checksum):
    part = {"type": "library", "bom-ref": package_url(kind, name, version), "name": name, "version": version}
    if license:
        # Crates before 2018 write `/` for `OR`.
        part["licenses"] = [{"expression": re.sub(r" ?/ ?", " OR ", license)}]
    part["purl"] = part["bom-ref"]
    if checksum:
        part["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if repository:
        part["externalReferences"] = [{"type": "vcs", "url": repository}]
    return part


def interface_components():
    """Yields the packages in the files of the interface, as far as they are installed."""
    for name in BUNDLED_PACKAGES:
        file = PROJECT / "ui" / "node_modules" / name / "package.json"
        if file.is_file():
            package = json.loads(file.read_text())
            yield component("npm", name, package["version"], package.get("license"), None, None)


def main():
    version = sys.argv[1]
    packages, dependencies, members = compiled_packages()
    checksums = {(name, at): sum for name, at, sum in LOCKED_CHECKSUM.findall((PROJECT / "Cargo.lock").read_text())}
    references, components = {}, []
    for id, package in packages.items():
        name, at = package["name"], package["version"]
        references[id] = package_url("cargo", name, at)
        # A crate that gives a file in place of an expression names none.
        part = component("cargo", name, at, package["license"], package["repository"], checksums.get((name, at)))
        if id not in members and not part.get("hashes"):
            sys.exit(f"sbom: {name} {at} has no checksum in Cargo.lock")
        components.append(part)
    components.extend(interface_components())
    components.sort(key=lambda part: part["bom-ref"])
    top = package_url("generic", "tympan", version)
    programs = sorted(references[id] for id in members if id in references and not any(id in ids for ids in dependencies.values()))
    graph = [{"ref": references[id], "dependsOn": sorted({references[other] for other in ids})} for id, ids in dependencies.items()]
    graph.append({"ref": top, "dependsOn": programs})
    content = {
        "components": components,
        "dependencies": sorted(graph, key=lambda node: node["ref"]),
    }
    time = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, top + json.dumps(content, sort_keys=True))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": top,
                "name": "tympan",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        **content,
    }
    print(json.dumps(bill, indent=1))


main()
