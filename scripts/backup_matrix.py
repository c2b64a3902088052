#!/usr/bin/env python3
"""Measures backups of an author: how fast they are, and what they cost those whom the author serves meanwhile.

Usage: scripts/backup_matrix.py [--program PATH] [--sizes 1,2,4,8] [--pages N] [--images N] [--seconds N] [--out DIR] [--short]

For each size of the content: full and incremental saves, idle and under 80 % of the load that the author bears (75 of 100
requests walk through pages, 24 query, 1 creates; 4 users at the peak), with a delay of 0, 1 and 10 ms for each new piece; and
`tar` of the same folders as the yardstick. Prints a table, and leaves `matrix.csv`, `time-by-pages.svg` and `time-by-size.svg`
in DIR. MB/s is of what the home holds, as an incremental save looks at all of it. "Lost" is how many answers fewer were given
than at the rate just before, over the whole save. `--short` is a run of minutes to see that all works.

Needs the built program. Exit code: 0 measured, 1 a save or a load failed, 3 it could not run.
"""
import argparse
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DELAYS = (0, 1, 10)
USERS = 4
SHARE = 0.8
PLAN = """name = "an author at work"
target = "{target}"

[headers]
Authorization = "Basic {login}"

[load]
users = {users}
duration = "10s"

[[scenario]]
name = "traverse"
weight = 75
  [[scenario.step]]
  name = "traverse"
  path = "/content/lab.2.json"
  expect = {{ status = [200, 300] }}

[[scenario]]
name = "query"
weight = 24
  [[scenario.step]]
  name = "query"
  path = "/bin/querybuilder.json"
  query = {{ path = "/content/lab", type = "cq:Page", "p.limit" = 10 }}
  expect = {{ status = 200 }}

[[scenario]]
name = "create"
weight = 1
  [[scenario.step]]
  name = "create"
  path = "/content/load/*"
  form = {{ "./jcr:primaryType" = "nt:unstructured", "./word" = "${{__Random(1,1000000)}}" }}
  expect = {{ status = [200, 201] }}
"""


class Author:
    """An author in a new home, filled step by step."""

    def __init__(self, program, folder):
        self.program, self.home = program, os.path.join(folder, "author")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self.log = open(os.path.join(folder, "author.log"), "w")
        self.process = subprocess.Popen([program, "author", "--home", self.home, "--listen", self.address],
                                        stdout=self.log, stderr=self.log)
        self.password_file = os.path.join(self.home, "initial-password")
        limit = time.monotonic() + 120
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError("the author does not start")
            time.sleep(0.2)
        password = open(self.password_file).read().split("\n")[0]
        self.login = b64encode(f"admin:{password}".encode()).decode()
        self.post("/content/load", {"jcr:primaryType": "sling:Folder"})

    def answers(self):
        try:
            urllib.request.urlopen(self.url + "/health", timeout=5).read()
            return os.path.exists(self.password_file)
        except urllib.error.HTTPError:
            return os.path.exists(self.password_file)
        except OSError:
            return False

    def post(self, path, form):
        data = "&".join(f"{name}={value}" for name, value in form.items()).encode()
        headers = {"Authorization": "Basic " + self.login, "Referer": self.url + "/"}
        urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=60).read()

    def fill(self, increment, pages, images):
        run([self.program, "lab", "content", "--author", self.url, "--password-file", self.password_file, "--from",
             str(increment), "--increments", "1", "--pages", str(pages), "--images", str(images), "--tags", "20"])

    def edit(self, number):
        for page in range(10):
            self.post(f"/content/load/edited{page}", {"jcr:primaryType": "nt:unstructured", "./edit": str(number)})

    def folders(self):
        return [os.path.join(self.home, name) for name in ("store", "blobs")]

    def size(self):
        files = (os.path.join(above, name) for folder in self.folders() for above, _, names in os.walk(folder)
                 for name in names)
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


class Load:
    """The requests of `tympan lab run`, one time for each answer."""

    def __init__(self, author, folder, words, seconds):
        self.result = os.path.join(folder, "load.jtl")
        if os.path.exists(self.result):
            os.remove(self.result)
        plan = os.path.join(folder, "load.toml")
        with open(plan, "w") as out:
            out.write(PLAN.format(target=author.url, login=author.login, users=USERS))
        self.process = subprocess.Popen(
            [author.program, "lab", "run", plan, "--for", f"{seconds}s", "--jtl", self.result, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def answers(self):
        """Ends, and returns the times at which answers were complete, in seconds since 1970."""
        said, errors = self.process.communicate(timeout=3600)
        # 1 is for goals that were missed; there are none that count here. 3 is for a machine that was too busy to send.
        self.is_late = self.process.returncode == 3
        if self.process.returncode not in (0, 1, 3) or not os.path.exists(self.result):
            text = (said + errors).decode()[-800:]
            raise RuntimeError(f"the load ended with {self.process.returncode}: {text}")
        with open(self.result) as file:
            rows = list(csv.DictReader(file))
        failed = [row for row in rows if row.get("success") == "false"]
        if len(failed) * 10 > len(rows) and not self.is_late:
            raise RuntimeError(f"{len(failed)} of {len(rows)} requests failed: {failed[0]}")
        return sorted((int(row["timeStamp"]) + int(row["elapsed"])) / 1000 for row in rows)


def run(words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:4])} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


class Vault:
    def __init__(self, author, folder):
        self.author, self.folder, self.number = author, folder, 0
        self.environment = dict(os.environ, TYMPAN_VAULT_PASSWORD="measured", XDG_STATE_HOME=os.path.join(folder, "state"),
                                XDG_CACHE_HOME=os.path.join(folder, "cache"))
        self.place = None

    def renew(self):
        if self.place:
            shutil.rmtree(self.place)
        self.number += 1
        self.place = os.path.join(self.folder, f"vault{self.number}")
        run([self.author.program, "backup", "init", "-r", self.place], env=self.environment)

    def save(self, delay):
        """Saves; returns when it began and ended."""
        begin = time.time()
        said = run([self.author.program, "backup", "save", "-r", self.place, "--json", "--no-view", "--delay-ms", str(delay),
                    f"repo:{self.author.home}"], env=self.environment)
        end = time.time()
        last = json.loads(said.strip().split("\n")[-1])
        if last.get("message_type") != "summary" or last.get("errors"):
            raise RuntimeError(f"a save came to nothing: {last}")
        return begin, end


def count_between(answers, begin, end):
    return sum(1 for at in answers if begin <= at < end)


def under_load(author, folder, rate, seconds, work):
    """Runs work under load. Returns what it returns, and the answers that were lost, in number and in percent; neither where
    the load was not sent as it was asked for, which is no result."""
    load = Load(author, folder, ["--rate", f"{rate:.0f}/s"], seconds)
    time.sleep(seconds * 0.4)
    span = work()
    answers = load.answers()
    if load.is_late:
        return span, "", ""
    begin, end = span
    before = begin - seconds * 0.25
    usual = count_between(answers, before, begin) / (begin - before)
    # What the load itself no longer covers says nothing.
    end = min(end, answers[-1]) if answers else end
    given = count_between(answers, begin, end)
    expected = usual * max(end - begin, 0.001)
    return span, max(expected - given, 0), 100 * (1 - given / expected) if expected else 0


def measure(arguments, folder):
    author = Author(arguments.program, folder)
    rows, filled, edits = [], 0, 0
    try:
        for size in arguments.sizes:
            while filled < size:
                author.fill(filled, arguments.pages, arguments.images)
                filled += 1
            peak = Load(author, folder, ["--users", str(USERS)], arguments.seconds).answers()
            rate = max(len(peak) / (peak[-1] - peak[0]) * SHARE, 1) if len(peak) > 1 else 1
            facts = {"pages": size * arguments.pages, "mb": author.size() / 1e6, "rate": rate}
            begin = time.time()
            run(["sh", "-c", 'tar cf "$0/copy.tar" "$@"', folder, *author.folders()])
            rows.append({**facts, "kind": "tar", "load": "idle", "delay": "", "seconds": time.time() - begin})
            tell(rows[-1])
            os.remove(os.path.join(folder, "copy.tar"))
            for delay in DELAYS:
                for loaded in (False, True):
                    vault = Vault(author, folder)
                    for kind in ("full", "incremental"):
                        if kind == "full":
                            vault.renew()
                        else:
                            edits += 1
                            author.edit(edits)
                        row = {**facts, "kind": kind, "load": "80 %" if loaded else "idle", "delay": delay}
                        if loaded:
                            work = under_load(author, folder, rate, arguments.seconds, lambda: vault.save(delay))
                            (begin, end), row["lost"], row["lost_percent"] = work
                        else:
                            begin, end = vault.save(delay)
                        rows.append({**row, "seconds": end - begin})
                        tell(rows[-1])
                    shutil.rmtree(vault.place)
    finally:
        author.end()
    return rows


def tell(row):
    lost = ""
    if "lost" in row:
        lost = "the machine was too busy" if row["lost"] == "" else f"{row['lost']:8.0f} {row['lost_percent']:6.1f} %"
    print(f"{row['pages']:7} {row['mb']:9.1f} {row['kind']:12} {row['load']:5} {row['delay']!s:>3} {row['seconds']:9.2f} "
          f"{row['mb'] / row['seconds']:9.1f} {lost}", flush=True)


def chart(file, rows, axis, label):
    """Draws the time of idle saves against pages or size, one line for each kind and delay."""
    lines = {}
    for row in rows:
        if row["load"] == "idle":
            name = row["kind"] if row["kind"] == "tar" else f"{row['kind']}, {row['delay']} ms"
            lines.setdefault(name, []).append((row[axis], row["seconds"]))
    width, height, left, bottom = 760, 420, 60, 50
    most_x = max(x for line in lines.values() for x, _ in line)
    most_y = max(y for line in lines.values() for _, y in line)
    place = lambda x, y: (left + x / most_x * (width - left - 180), height - bottom - y / most_y * (height - bottom - 20))
    colors = ["#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#b8860b", "#444444", "#008b8b"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<text x="{left}" y="{height - 12}">{label}, up to {most_x:.0f}</text>',
           f'<text x="{left}" y="14">seconds, up to {most_y:.2f}</text>']
    for (x1, y1), (x2, y2) in (((0, 0), (most_x, 0)), ((0, 0), (0, most_y))):
        (a, b), (c, d) = place(x1, y1), place(x2, y2)
        out.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#888"/>')
    for number, (name, line) in enumerate(lines.items()):
        color = colors[number % len(colors)]
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in sorted(line))
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{width - 170}" y="{30 + 18 * number}" fill="{color}">{name}</text>')
    with open(file, "w") as svg:
        svg.write("\n".join([*out, "</svg>\n"]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    parser.add_argument("--sizes", default="1,2,4,8", help="sizes of the content, in increments of `tympan lab content`")
    parser.add_argument("--pages", type=int, default=700, help="of an increment")
    parser.add_argument("--images", type=int, default=200, help="of an increment")
    parser.add_argument("--seconds", type=int, default=60, help="how long the load lasts around each save")
    parser.add_argument("--out", default=".")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.pages, arguments.images, arguments.seconds = 50, 10, 6
    arguments.sizes = sorted(int(size) for size in arguments.sizes.split(","))
    return arguments


def main():
    arguments = parse()
    if not os.path.exists(arguments.program):
        print(f"backup_matrix: there is no `{arguments.program}`", file=sys.stderr)
        return 3
    print(f"{'pages':>7} {'MB':>9} {'kind':12} {'load':5} {'ms':>3} {'seconds':>9} {'MB/s':>9} {'lost':>8}")
    with tempfile.TemporaryDirectory(prefix="tympan-backup-matrix-") as folder:
        try:
            rows = measure(arguments, folder)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"backup_matrix: {error}", file=sys.stderr)
            return 1
    os.makedirs(arguments.out, exist_ok=True)
    names = ["pages", "mb", "rate", "kind", "load", "delay", "seconds", "lost", "lost_percent"]
    with open(os.path.join(arguments.out, "matrix.csv"), "w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
    chart(os.path.join(arguments.out, "time-by-pages.svg"), rows, "pages", "pages")
    chart(os.path.join(arguments.out, "time-by-size.svg"), rows, "mb", "MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
