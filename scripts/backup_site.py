#!/usr/bin/env python3
"""Saves the sample site, made many times as large, edits it, kills saves of it, and brings it back.

Usage: scripts/backup_site.py [--program PATH] [--times 1,10,100] [--edits 10,100,1000] [--kills N] [--seed N] [--keep DIR]

For each of the sizes: a new home with the sample site and so many copies of its pages and assets beside it, a first save, a save
after 10 edits, and one where nothing changed. At the largest size also a save after each number of edits. An edit is one
commit of one page. Bytes and time of a save must follow the edits, not the size: the table tells both, with seconds of CPU.

Then saves of the largest are killed with SIGKILL at random moments: three of four after 10 edits, every fourth a first save
into a vault of its own. After each kill the vault is checked, with all its data every tenth time, and the next save must end
well. At last the author ends, its home is saved once more and restored as a new home: the root hash must be the same, and
`tympan repo check` clean; where restic is installed, it checks the vault, and what it restores becomes a home of the same
root, too.

Copies share the bytes of pictures with the site, as equal blobs are stored once; documents are stored for each copy.

Needs the built program. Exit code: 0 nothing was lost, 1 something was, 3 it could not run.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from backup_author import Author, Vault, end_well, machine, objects, run  # noqa: E402
from experiments.harness import Process, free_address  # noqa: E402

SITE = ("/content/wayfare", "/content/dam/wayfare")
PAGE = "/content/wayfare/en/jcr:content"
EDITS = 10


class Lost(Exception):
    """Something that was saved did not come back, or was damaged."""


def import_site(program, folder):
    """Makes a home with the sample site; returns it."""
    home = os.path.join(folder, "demo")
    words = ["demo", "--home", home]
    for role in ("--author", "--publish", "--dispatcher"):
        words += [role, free_address()]
    Process(program, words, os.path.join(folder, "demo.log")).stop()
    return os.path.join(home, "author")


def multiply(author, before, times):
    """Adds copies of the site until there are so many."""
    for number in range(before, times):
        for path in SITE:
            author.copy(path, f"{path}{number}")


def settle(author):
    """Waits until the author writes no more: what was copied is indexed, and its assets are looked at."""
    limit, before = time.monotonic() + 900, -1
    while time.monotonic() < limit:
        now = author.size()
        if now == before:
            return
        before = now
        time.sleep(5)
    raise RuntimeError("the author does not come to rest")


def edit(author, times, count, state):
    """Edits pages of the copies in turn, one commit each."""
    for _ in range(count):
        state["edits"] += 1
        copy = state["edits"] % times or ""
        path = PAGE.replace("/wayfare/", f"/wayfare{copy}/")
        author.post(path, {"edited": f"edit+{state['edits']}"})


def documents(program, home):
    """Counts what a home holds, and tells its root. Its author must not run."""
    return objects(run([program, "repo", "stats", "--home", home, "--json"]))[0]


def row(table, times, what, facts, saved):
    table.append((times, what))
    if saved.get("message_type") == "unchanged":
        new, folders, stored = 0, 0, 0
    else:
        new, folders, stored = saved["data_blobs"], saved["tree_blobs"], saved["data_added_packed"]
    print(f"{times:5} {facts['documents']:9} {what:16} {saved['seconds']:9.2f} {saved['cpu']:7.2f} {new:9} {folders:8} "
          f"{stored / 1024:12.0f}", flush=True)


def measure(arguments, folder, home):
    """Saves at each size; returns the author, which runs, and its vault."""
    print(f"{machine()}")
    print(f"{'times':>5} {'documents':>9} {'save':16} {'seconds':>9} {'CPU':>7} {'pieces':>9} {'folders':>8} {'stored, KiB':>12}")
    program, table, state, before = arguments.program, [], {"edits": 0}, 1
    author = None
    for times in arguments.times:
        author = Author(program, folder, home)
        multiply(author, before, times)
        before = times
        settle(author)
        author.end()
        facts = documents(program, home)
        author = Author(program, folder, home)
        settle(author)
        vault = Vault(program, folder)
        vault.renew()
        source = f"repo:{home}"
        row(table, times, "first", facts, vault.save(source))
        edit(author, times, EDITS, state)
        row(table, times, f"{EDITS} edits", facts, vault.save(source))
        row(table, times, "nothing changed", facts, vault.save(source))
        if times == arguments.times[-1]:
            for count in arguments.edits:
                edit(author, times, count, state)
                row(table, times, f"{count} edits", facts, vault.save(source))
            return author, vault, state
        author.end()
    return author, None, state


def snapshots(vault):
    return len(os.listdir(os.path.join(vault.place, "snapshots")))


def check(vault, how, when):
    done = subprocess.run(vault.words("check", *how), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=vault.environment)
    if done.returncode != 0:
        raise Lost(f"{when}: {done.stdout[-800:]} {done.stderr[-200:]}")


def kill(arguments, folder, author, vault, state):
    """Kills saves at random moments, and says what was found."""
    chance = random.Random(arguments.seed)
    source, times = f"repo:{author.home}", arguments.times[-1]
    first_vault = Vault(arguments.program, folder, "vault-first")
    first_vault.renew()
    first_span = first_vault.save(source)["seconds"]
    first_vault.renew()
    edit(author, times, EDITS, state)
    span = vault.save(source)["seconds"]
    counts = {"killed": 0, "ended before": 0, "first": 0, "lock left": 0, "snapshot made": 0}
    try:
        for number in range(1, arguments.kills + 1):
            is_first = number % 4 == 0
            at = first_vault if is_first else vault
            edit(author, times, EDITS, state)
            before = snapshots(at)
            save = subprocess.Popen(at.words("save", source), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at.environment)
            # A little longer than a save takes, so that the last steps are hit too.
            time.sleep(chance.random() * 1.1 * (first_span if is_first else span))
            counts["ended before" if save.poll() is not None else "killed"] += 1
            save.kill()
            save.wait()
            counts["first"] += is_first
            counts["lock left"] += bool(os.listdir(os.path.join(at.place, "locks")))
            counts["snapshot made"] += snapshots(at) > before
            if not before <= snapshots(at) <= before + 1:
                raise Lost(f"after kill {number} there are {snapshots(at)} snapshots, and there were {before}")
            check(at, ["--read-data"] if number % 10 == 0 else [], f"after kill {number}")
            at.save(source)
            if is_first:
                check(at, ["--read-data"], f"after the save that follows kill {number}")
                at.renew()
    finally:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        print(f"{counts['killed'] + counts['ended before']} kills: {told}", flush=True)
    check(vault, ["--read-data"], "after all kills")
    print("nothing lost", flush=True)
    return vault


def restore(arguments, folder, author, vault):
    """Brings the last state back, and compares."""
    program, home = arguments.program, author.home
    author.end()
    vault.save(f"repo:{home}")
    expected = documents(program, home)
    verdicts = []

    def compare(what, made):
        found = documents(program, made)
        clean = subprocess.run([program, "repo", "check", "--home", made], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if found != expected or clean.returncode != 0:
            raise Lost(f"{what}: {found} in place of {expected}; `repo check` ended with {clean.returncode}: {clean.stdout[-500:]}")
        verdicts.append(what)
        shutil.rmtree(made)

    copy = os.path.join(folder, "copy")
    begin = time.time()
    vault.run("restore", "latest", "--home", copy)
    seconds = time.time() - begin
    compare("by tympan", copy)
    if shutil.which("restic"):
        for words in (["check", "--no-lock", "--read-data"], ["restore", "latest", "--target", os.path.join(folder, "out")]):
            run(["restic", "--no-cache", "-q", "-r", vault.place, *words], env=vault.environment)
        out = os.path.join(folder, "out")
        made = next((above for above, names, _ in os.walk(out) if "state" in names), None)
        if made is None:
            raise Lost(f"restic restored no repository into {out}")
        run([program, "backup", "restore", "--unpacked", made, "--home", copy], env=vault.environment)
        compare("by restic", copy)
    else:
        print("skipped: this machine has no restic")
    print(f"restored in {seconds:.1f} s; root {expected['root']}, {expected['documents']} documents, {expected['pages']} pages, "
          f"{expected['assets']} assets; the same root and `repo check` clean: {', '.join(verdicts)}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(number) for number in text.split(",") if number]
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    parser.add_argument("--times", type=numbers, default=[1, 10, 100], help="sizes, in sample sites")
    parser.add_argument("--edits", type=numbers, default=[10, 100, 1000], help="at the largest size")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="work in this folder, and leave it")
    arguments = parser.parse_args()
    arguments.times.sort()
    return arguments


def main():
    end_well()
    arguments = parse()
    if not os.path.exists(arguments.program):
        print(f"backup_site: there is no `{arguments.program}`", file=sys.stderr)
        return 3
    folder = arguments.keep or tempfile.mkdtemp(prefix="tympan-backup-site-")
    os.makedirs(folder, exist_ok=True)
    author = None
    try:
        author, vault, state = measure(arguments, folder, import_site(arguments.program, folder))
        kill(arguments, folder, author, vault, state)
        restore(arguments, folder, author, vault)
        return 0
    except Lost as lost:
        print(f"backup_site: LOST: {lost}", file=sys.stderr)
        return 1
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"backup_site: {error}", file=sys.stderr)
        return 3
    finally:
        if author:
            author.end()
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
