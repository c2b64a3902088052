#!/usr/bin/env python3
"""Prints the licenses of all parts of the two programs: of the project, of the crates that are compiled into them with
the C sources they bring, and of the packages that the build of the web interface puts into its files.

Crates are those of `cargo metadata` that the programs depend on, without those of tests and of the build itself. Texts
that several parts share are printed once. Fails if a part has no license.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = ("tympan", "tympan-lab")
LICENSE_FILE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense|patents)([-._].*)?$", re.IGNORECASE)
SOURCE_SUFFIXES = {".rs", ".c", ".h", ".py", ".js", ".ts", ".html", ".json", ".toml", ".spdx"}
# What a build of the interface takes into its files, rather than only running.
BUNDLED_PACKAGES = ("svelte", "@lucide/svelte", "esm-env", "clsx")


def license_files(folder, depth):
    """Returns the license files in a folder and, for C sources, in the folders below it."""
    found = []
    for current, folders, files in os.walk(folder):
        level = len(Path(current).relative_to(folder).parts)
        folders[:] = sorted(f for f in folders if level < depth and f not in {"target", "tests", "testdata", "node_modules"})
        for name in sorted(files):
            path = Path(current) / name
            if LICENSE_FILE.match(name) and path.suffix.lower() not in SOURCE_SUFFIXES:
                found.append(path)
    return found


def compiled_packages():
    """Returns the packages of all crates that are compiled into the programs, by their ids, with the ids that each
    depends on, and the ids of the project's own."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host_platform()]
    metadata = json.loads(subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    members = set(metadata["workspace_members"])
    waiting = [id for id in members if packages[id]["name"] in PROGRAMS]
    dependencies = {id: [] for id in waiting}
    while waiting:
        id = waiting.pop()
        for dependency in nodes[id]["deps"]:
            is_compiled = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if is_compiled and not is_macro:
                dependencies[id].append(dependency["pkg"])
                if dependency["pkg"] not in dependencies:
                    dependencies[dependency["pkg"]] = []
                    waiting.append(dependency["pkg"])
    return {id: packages[id] for id in dependencies}, dependencies, members


def compiled_crates():
    """Yields each crate of others that is compiled into the programs."""
    packages, _, members = compiled_packages()
    for id in packages.keys() - members:
        package = packages[id]
        folder = Path(package["manifest_path"]).parent
        depth = 4 if package["links"] or package["name"].endswith("-sys") else 1
        license = package["license"] or (f"see {package['license_file']}" if package["license_file"] else None)
        yield f"{package['name']} {package['version']}", license, license_files(folder, depth), folder


def host_platform():
    text = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.search(r"^host: (.+)$", text, re.MULTILINE).group(1)


def bundled_packages():
    """Yields each package of the interface's build that is in its files."""
    for name in BUNDLED_PACKAGES:
        folder = PROJECT / "ui" / "node_modules" / name
        if not (folder / "package.json").is_file():
            if name in ("svelte", "@lucide/svelte") and (PROJECT / "ui" / "dist" / "index.html").is_file():
                sys.exit(f"licenses: `{folder}` is missing; run `npm ci` in `ui`")
            continue
        package = json.loads((folder / "package.json").read_text())
        yield f"{name} {package['version']} (web interface)", package.get("license"), license_files(folder, 0), folder


def main():
    parts = sorted([*compiled_crates(), *bundled_packages()], key=lambda part: part[0])
    unlicensed = [name for name, license, files, _ in parts if not license and not files]
    if unlicensed:
        sys.exit(f"licenses: no license: {', '.join(unlicensed)}")
    texts = {}
    for name, _, files, folder in parts:
        for file in files:
            text = file.read_text(errors="replace").replace("\r\n", "\n").strip()
            key = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            where = name if file.parent == folder else f"{name}: {file.parent.relative_to(folder)}"
            texts.setdefault(key, (text, []))[1].append(where)
    out = sys.stdout
    out.write("Tympan is licensed under the Apache License, Version 2.0, whose text is the first one below.\n")
    out.write(f"The programs contain {len(parts)} parts of others, with these licenses:\n\n")
    for name, license, _, _ in parts:
        out.write(f"  {name}: {license or 'see its text'}\n")
    out.write(f"\n{'=' * 80}\nTympan\n{'-' * 80}\n{(PROJECT / 'LICENSE').read_text().strip()}\n")
    for text, names in sorted(texts.values(), key=lambda entry: entry[1]):
        out.write(f"\n{'=' * 80}\n")
        for name in dict.fromkeys(names):
            out.write(f"{name}\n")
        out.write(f"{'-' * 80}\n{text}\n")


if __name__ == "__main__":
    main()
