#!/usr/bin/env python3
"""Measures the goals of backups that take a line or a load: K6 and K7.

Usage: scripts/backup_goals.py [K6] [K7] [--program PATH] [--files N] [--rounds N] [--increments N] [--span SECONDS] [--json FILE]
       QUICK=1 scripts/backup_goals.py ...    20,000 files, 3 rounds, 2 increments, loads of 8 s

K6: a save of a folder in which one file changed, into a vault that Debian's sshd keeps, through a proxy that delays each way by
half of a round trip and carries so many bytes a second. The first save is made where the vault lies.
  * 20 ms: how long the line holds the save up (its time less its time without the proxy), beside the same files fetched and sent
    by `sftp -R 1`, which has one request on its way at a time: at least 5 times as long. That is OpenSSH's own client, which looks
    at a path before it fetches or lists it, and syncs nothing; the save's own requests are fewer (docs/benchmarks.md). restic over
    ssh stands beside. The first round is not counted: it leaves index, snapshots, folders and the key's file in the cache.
  * 1 ms and 3 MB/s: at most 1.5 times the time of a save into the same vault as a folder.
  * the same line, 6 MB that are new, queues of 1, 4, 16 and 64 MiB: the slowest at most 1.15 times the fastest, by medians.
K7: an author with content of `tympan lab author content` and 80 % of its peak load (75 of 100 requests traverse, 24 query, 1 creates;
4 threads). First saves with `--beside` and without, in turn, by `tympan lab author backup-impact`: the 95th percentile of the requests
at most 1.25 times that of the load alone, and transactions lost in total below those of the saves without it.

Sides take turns; a figure is the median of the rounds, with the least and the most. Each round is told as it ends; a run that is
cut off by a signal tells the figures of the rounds that it has made. Needs the built program; K6 needs sshd and sftp too, and is
told without restic where that is missing. Exit code: 0 all goals met, 1 some not, 3 some row could not run, or was cut off.
"""
import argparse
import contextlib
import getpass
import json
import os
import queue
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from backup_author import Author, Vault, ahead, end_process, end_well, is_quick, machine, require_room, run  # noqa: E402

SSHD = "/usr/sbin/sshd"
CLIENT = "measured"


class Line:
    """A proxy that delays what passes, and carries only so many bytes a second each way."""

    def __init__(self, port, round_trip, rate=None):
        self.target, self.one_way, self.rate = ("127.0.0.1", port), round_trip / 2, rate
        self.free, self.lock = [0.0, 0.0], threading.Lock()
        # The most round trips, one after another, of which the near and the far side have heard the result.
        self.heard = [0, 0]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def round_trips(self):
        """How many round trips were made one after another: what is on its way at once counts once."""
        return self.heard[0]

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for way, (source, sink) in enumerate(((near, far), (far, near))):
                    # A narrow line holds little: whoever sends more waits.
                    held = queue.Queue(8 if self.rate else 1024)
                    threading.Thread(target=self.read, args=(way, source, held), daemon=True).start()
                    threading.Thread(target=self.write, args=(way, sink, held), daemon=True).start()

    def read(self, way, source, held):
        data = b"?"
        while data:
            try:
                data = source.recv(16384)
            except OSError:
                data = b""
            now = time.monotonic()
            with self.lock:
                trips = self.heard[way] + (way == 0 and data != b"")
                if self.rate:
                    now = self.free[way] = max(now, self.free[way]) + len(data) / self.rate
            held.put((now + self.one_way, trips, data))

    def write(self, way, sink, held):
        with contextlib.suppress(OSError):
            while True:
                due, trips, data = held.get()
                time.sleep(max(due - time.monotonic(), 0))
                with self.lock:
                    self.heard[1 - way] = max(self.heard[1 - way], trips)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    def close(self):
        self.listener.close()


class Host:
    """Debian's sshd on a free port, with keys of its own, whose home is a folder."""

    def __init__(self, folder):
        self.folder, self.there = os.path.join(folder, "ssh"), os.path.join(folder, "there")
        os.makedirs(self.folder)
        os.makedirs(self.there)
        os.makedirs("/run/sshd", exist_ok=True)
        for name in ("host", "user"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.file(name)])
        shutil.copy(self.file("user.pub"), self.file("authorized"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with open(self.file("config"), "w") as out:
            out.write(f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self.file('host')}\nPidFile none\n"
                      f"AuthorizedKeysFile {self.file('authorized')}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
                      "PermitRootLogin prohibit-password\nUseDNS no\nLogLevel ERROR\n"
                      f"Subsystem sftp internal-sftp -d {self.there}\n")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.file("config")], stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            if time.monotonic() > limit or self.process.poll() is not None:
                self.end()
                raise RuntimeError("sshd does not start")
            time.sleep(0.05)

    def file(self, name):
        return os.path.join(self.folder, name)

    def know(self, port):
        """Returns a file in which the host is known at a port."""
        file = self.file(f"known{port}")
        with open(self.file("host.pub")) as key, open(file, "w") as out:
            out.write(f"[127.0.0.1]:{port} {key.read()}")
        return file

    def words(self, port):
        return ["-o", f"UserKnownHostsFile={self.know(port)}", "-o", "IdentitiesOnly=yes", "-F", "none", "-i", self.file("user")]

    def end(self):
        if self.process.poll() is None:
            end_process(self.process)


class Far:
    """A vault on the host, its first save, and the ways to it."""

    def __init__(self, arguments, folder):
        self.program, self.source, self.changes = arguments.program, os.path.join(folder, "source"), 0
        # A file takes a block here, and its bytes once more in each of two vaults.
        require_room(folder, arguments.files * 6000 + 500_000_000, "K6")
        self.host = Host(folder)
        try:
            self.make(arguments, folder)
        except BaseException:
            self.host.end()
            raise

    def make(self, arguments, folder):
        """Writes the files, and saves them where the vaults lie."""
        self.local = Vault(self.program, self.host.there, "vault")
        self.environment = dict(self.local.environment, HOME=folder, XDG_CACHE_HOME=os.path.join(folder, "cache"),
                                XDG_STATE_HOME=os.path.join(folder, "state"), XDG_CONFIG_HOME=os.path.join(folder, "config"))
        self.environment.pop("SSH_AUTH_SOCK", None)
        self.local.environment = self.environment
        for number in range(arguments.files):
            below = os.path.join(self.source, f"{number // 1300:03}", f"{number % 1300 // 13:03}")
            os.makedirs(below, exist_ok=True)
            with open(os.path.join(below, f"f{number}"), "w") as out:
                out.write(f"file {number} " * (20 + number % 160))
        self.local.renew()
        self.local.save("--client-name", CLIENT, self.source)
        self.restic = shutil.which("restic")
        if not self.restic:
            print("K6  skipped: restic is not installed, so nothing stands beside the save", flush=True)
        else:
            self.theirs = os.path.join(self.host.there, "restic")
            run([self.restic, "-q", "-r", self.theirs, "init"], env=self.environment)
            run([self.restic, "-q", "-r", self.theirs, "backup", self.source], env=self.environment)

    def change(self, length=40):
        """Changes one file: other bytes each time, which do not compress."""
        self.changes += 1
        with open(os.path.join(self.source, "changed"), "wb") as out:
            out.write(os.urandom(length))

    def vault_files(self):
        return {os.path.relpath(os.path.join(above, name), self.local.place) for above, _, names in os.walk(self.local.place)
                for name in names}

    def save(self, port=None, *more):
        """Saves over the line that begins at a port, or as a folder; returns the seconds and the save's files."""
        place = self.local.place
        words = ["--client-name", CLIENT, "--json", *more, self.source]
        if port:
            place = f"sftp://{getpass.getuser()}@127.0.0.1:{port}/~/vault"
            words += ["--ssh-key", self.host.file("user"), "--ssh-known-hosts", self.host.know(port)]
        before = self.vault_files()
        begin = time.monotonic()
        said = run([self.program, "backup", "save", "-r", place, *words], env=self.environment)
        seconds = time.monotonic() - begin
        summary = json.loads(said.strip().split("\n")[-1])
        if summary.get("data_blobs", 0) < 1 or summary.get("errors"):
            raise RuntimeError(f"a save did not save what changed: {summary}")
        return seconds, sorted(self.vault_files() - before)

    def one_at_a_time(self, port, files):
        """Does what such a save does with files, by `sftp` with one request on its way: reads what opens the vault, looks at
        locks, index and snapshots, writes a lock, then each new file under a name of its own, renamed when it is whole."""
        got, batch = os.path.join(self.host.folder, "got"), self.host.file("batch")
        key = os.listdir(os.path.join(self.local.place, "keys"))[0]
        lines = [f"get vault/config {got}", f"get vault/keys/{key} {got}", "ls vault/locks", f"put {got} other/lock",
                 "ls vault/locks", "ls vault/index", "ls vault/snapshots"]
        os.makedirs(os.path.join(self.host.there, "other"), exist_ok=True)
        for number, file in enumerate(files):
            lines += [f"put {os.path.join(self.local.place, file)} other/new{number}", f"rename other/new{number} other/{number}"]
        lines += ["ls vault/locks", "rm other/lock"]
        with open(batch, "w") as out:
            out.write("\n".join(lines) + "\n")
        begin = time.monotonic()
        run(["sftp", "-q", "-R", "1", "-b", batch, "-P", str(port), *self.host.words(port), f"{getpass.getuser()}@127.0.0.1"],
            env=self.environment)
        seconds = time.monotonic() - begin
        shutil.rmtree(os.path.join(self.host.there, "other"))
        return seconds

    def by_restic(self, port):
        ssh = " ".join(["ssh", "-p", str(port), *self.host.words(port), f"{getpass.getuser()}@127.0.0.1", "-s", "sftp"])
        begin = time.monotonic()
        run([self.restic, "-q", "-o", f"sftp.command={ssh}", "-r", f"sftp:{getpass.getuser()}@127.0.0.1:{self.theirs}", "backup",
             self.source], env=self.environment)
        return time.monotonic() - begin


class Figures:
    def __init__(self):
        self.all = []

    def add(self, row, what, values, unit="x", at_most=None, at_least=None, note=""):
        """Adds a figure: the median of values, and its goal."""
        median = statistics.median(values)
        met = None
        if at_most is not None:
            met = median <= at_most
        if at_least is not None:
            met = median >= at_least
        goal = f"at most {at_most}" if at_most is not None else f"at least {at_least}" if at_least is not None else ""
        self.all.append({"row": row, "what": what, "measured": median, "range": [min(values), max(values)], "unit": unit, "goal": goal,
                         "met": met, "note": note})
        verdict = {True: "met", False: "NOT MET", None: ""}[met]
        print(f"{row}  {what}: {median:.2f} {unit} ({min(values):.2f} to {max(values):.2f})  {goal}  {verdict}", flush=True)
        if note:
            print(f"    {note}", flush=True)


def measure_far(arguments, folder, figures):
    far = Far(arguments, folder)
    lines = []

    def line(*how):
        lines.append(Line(far.host.port, *how))
        return lines[-1].port

    direct, distant, narrow = far.host.port, line(0.020), line(0.001, 3_000_000)
    taken, turns, told = {}, {}, []
    queues = {size: [] for size in (1, 4, 16, 64)}

    def note(what, seconds):
        taken.setdefault(what, []).append(seconds)
        told.append(f"{what} {seconds:.2f} s")
        # How often a side waited for the other does not depend on what else the machine does.
        now = lines[0].round_trips
        turns.setdefault(what, []).append(now - turns.get("before", 0))
        turns["before"] = now

    try:
        for number in range(arguments.rounds + 1):
            if number == 1:
                # The first round warms up.
                taken.clear()
                turns.clear()
                turns["before"] = lines[0].round_trips
            told.clear()
            for where, port in (("near", direct), ("20 ms", distant), ("1 ms, 3 MB/s", narrow)):
                far.change()
                seconds, files = far.save(port)
                note(f"save, {where}", seconds)
                note(f"one at a time, {where}", far.one_at_a_time(port, files))
                if far.restic and where == "20 ms":
                    note(f"restic, {where}", far.by_restic(port))
            far.change()
            note("save, folder", far.save()[0])
            print(f"K6  {f'round {number}' if number else 'warming up'}: {'; '.join(told)}", flush=True)
        for number in range(arguments.rounds):
            for size, values in queues.items():
                far.change(6_000_000)
                values.append(far.save(narrow, "--upload-queue", f"{size} MiB")[0])
            took = ", ".join(f"{size} MiB {values[-1]:.2f} s" for size, values in queues.items())
            print(f"K6  queues, round {number + 1}: {took}", flush=True)
    finally:
        # Whatever keeps the figures from being told, as a second signal, sshd must not stay.
        try:
            tell_far((arguments, far), (taken, turns, queues), figures)
        finally:
            for one in lines:
                one.close()
            far.host.end()


def tell_far(of, measured, figures):
    """Tells the figures of the rounds that were made."""
    (arguments, far), (taken, turns, queues) = of, measured
    rounds = min((len(values) for what, values in taken.items()), default=0)
    if rounds and "save, folder" in taken:
        taken = {what: values[:rounds] for what, values in taken.items()}
        medians = {what: statistics.median(values) for what, values in taken.items()}
        waits = lambda who: [far - near for far, near in zip(taken[f"{who}, 20 ms"], taken[f"{who}, near"])]
        ratio = [theirs / max(ours, 0.001) for theirs, ours in zip(waits("one at a time"), waits("save"))]
        wait = {who: statistics.median(waits(who)) for who in ("save", "one at a time")}
        figures.add("K6", f"20 ms, one of {arguments.files} files changed: what the line adds to one request at a time, against a save",
                    ratio, at_least=5, note=f"{wait['one at a time']:.2f} s against {wait['save']:.2f} s; the whole save "
                    f"{medians['save, 20 ms']:.2f} s, of which {medians['save, near']:.2f} s without the line")
        trips = {who: turns[f"{who}, 20 ms"][:rounds] for who in ("save", "one at a time")}
        figures.add("K6", "round trips of the line, one request at a time, against a save",
                    [theirs / ours for theirs, ours in zip(trips["one at a time"], trips["save"])],
                    note=f"{statistics.median(trips['one at a time']):.0f} against {statistics.median(trips['save']):.0f}")
        if far.restic:
            whole = [ours / theirs for ours, theirs in zip(taken["save, 20 ms"], taken["restic, 20 ms"])]
            version = run(["restic", "version"]).split()[1]
            figures.add("K6", f"20 ms, the whole save against restic {version}", whole,
                        note=f"{medians['save, 20 ms']:.2f} s against {medians['restic, 20 ms']:.2f} s")
        slower = [there / here for there, here in zip(taken["save, 1 ms, 3 MB/s"], taken["save, folder"])]
        figures.add("K6", "1 ms and 3 MB/s, one file changed, against the vault as a folder", slower, at_most=1.5,
                    note=f"{medians['save, 1 ms, 3 MB/s']:.2f} s against {medians['save, folder']:.2f} s")
    if all(queues.values()):
        medians = {size: statistics.median(values) for size, values in queues.items()}
        told = ", ".join(f"{size} MiB {median:.2f} s" for size, median in medians.items())
        figures.add("K6", "1 ms and 3 MB/s, 6 MB new: the slowest queue against the fastest",
                    [max(medians.values()) / min(medians.values())], at_most=1.15, note=told)


def measure_load(arguments, folder, figures):
    author = Author(arguments.program, folder)
    try:
        for increment in range(arguments.increments):
            author.fill(increment, 700, 200)
            print(f"K7  {increment + 1} of {arguments.increments} increments of content, {author.size() / 1e6:.0f} MB", flush=True)
        author.settle()
        vault = Vault(arguments.program, folder)
        before, back = ahead()
        words = [*back, arguments.program, "backup", "save", "-r", vault.place, "--json", f"repo:{author.home}"]
        quoted = " ".join(f"'{word}'" for word in words)
        init = f"rm -rf '{vault.place}' && {' '.join(back)} '{arguments.program}' backup init -r '{vault.place}'"
        # What stands for the delay says how to save.
        save = f'if [ "$0" = beside ]; then exec {quoted} --beside "{author.home}"; else exec {quoted}; fi'
        # Each backup is told as it ends.
        said = run([*before, arguments.program, "lab", "author", "backup-impact", "--author", author.url, "--json", "--duration", f"{arguments.span}s",
                    "--runs", str(arguments.rounds), "--delay", "plain,beside", "--before", init, "--traverse", "/content/lab.2.json",
                    "--bytes", '"data_added":([0-9]+)', "--", "sh", "-c", save, "{delay}"],
                   env=dict(vault.environment, TYMPAN_LAB_LOGIN=f"admin:{password(author)}"), stderr=None)
        sheet = json.loads(said)
        if arguments.json:
            with open(arguments.json + ".impact", "w") as out:
                out.write(said)
        sheet = find(sheet, "backups")
        loaded = {how: [one for one in sheet["backups"] if one["under_load"] and one["delay"] == how] for how in ("plain", "beside")}
        p95 = {how: [one["p95_ms"] / sheet["alone_p95_ms"] for one in runs] for how, runs in loaded.items()}
        lost = {how: [one["lost_transactions"] for one in runs] for how, runs in loaded.items()}
        share = {how: 100 * statistics.median(one["lost_share"] for one in runs) for how, runs in loaded.items()}
        took = {how: statistics.median(one["seconds"] for one in runs) for how, runs in loaded.items()}
        size = statistics.median(one["megabytes"] or 0 for one in sheet["backups"])
        alone = f"{sheet['alone_per_second']:.0f} requests/s alone, of a peak of {sheet['peak_per_second']:.0f}/s, p95 {sheet['alone_p95_ms']:.1f} ms"
        figures.add("K7", f"p95 of the requests during a first save of {size:.0f} MB with --beside, against the load alone", p95["beside"],
                    at_most=1.25, note=alone)
        figures.add("K7", "the same without --beside", p95["plain"])
        ratio = [ours / max(theirs, 1) for ours, theirs in zip(lost["beside"], lost["plain"])]
        figures.add("K7", "transactions lost in total with --beside, against without", ratio, at_most=1,
                    note=f"{statistics.median(lost['beside']):.0f} in {took['beside']:.1f} s ({share['beside']:.1f} %) against "
                    f"{statistics.median(lost['plain']):.0f} in {took['plain']:.1f} s ({share['plain']:.1f} %)")
    finally:
        author.end()


def password(author):
    with open(author.password_file) as file:
        return file.read().split("\n")[0]


def find(value, name):
    """Finds the object that has a member, at any depth."""
    if isinstance(value, dict):
        if name in value:
            return value
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        found = find(one, name)
        if found is not None:
            return found
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="K6|K7")
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    files, rounds, increments, span = (20_000, 3, 2, 8) if is_quick() else (155_000, 5, 8, 15)
    parser.add_argument("--files", type=int, default=files, help="of K6")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--increments", type=int, default=increments, help="of 700 pages and 200 pictures, of K7")
    parser.add_argument("--span", type=int, default=span, help="seconds of the load alone, of K7")
    parser.add_argument("--json", help="writes the figures to this file")
    return parser.parse_args()


def main():
    end_well()
    arguments = parse()
    needed = [arguments.program]
    measures = {"K6": measure_far, "K7": measure_load}
    rows = arguments.rows or list(measures)
    if not set(rows) <= set(measures):
        print(f"backup_goals: there are {', '.join(measures)}", file=sys.stderr)
        return 3
    if "K6" in rows:
        needed += [SSHD, "sftp", "ssh-keygen"]
    for file in needed:
        if not shutil.which(file):
            print(f"backup_goals: there is no `{file}`", file=sys.stderr)
            return 3
    print(machine(), flush=True)
    figures, failed = Figures(), False
    try:
        for row in rows:
            with tempfile.TemporaryDirectory(prefix="tympan-backup-goals-") as folder:
                try:
                    measures[row](arguments, folder, figures)
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    print(f"backup_goals: {row}: {error}", file=sys.stderr)
                    failed = True
    finally:
        if arguments.json:
            with open(arguments.json, "w") as out:
                json.dump(figures.all, out, indent=2)
    if failed:
        return 3
    return 0 if all(one["met"] is not False for one in figures.all) else 1


if __name__ == "__main__":
    sys.exit(main())
