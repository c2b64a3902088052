#!/usr/bin/env python3
"""Measures backups of an author: how fast they are, and what they cost those whom the author serves meanwhile.

Usage: scripts/backup_matrix.py [--program PATH] [--sizes 1,2,4,8] [--pages N] [--images N] [--seconds N] [--within MINUTES]
       [--out DIR] [--short]

For each size of the content: full and incremental saves, idle and under 80 % of the load that the author bears (75 of 100
requests walk through a page, 24 query, 1 creates; 4 users who wait for their answers), with a delay of 0, 1 and 10 ms for each new piece; and
`tar` of the same folders as the yardstick. Prints a table, and leaves `matrix.csv`, `time-by-pages.svg` and `time-by-size.svg`
in DIR. MB/s is of what the home holds, as an incremental save looks at all of it. "Lost" is how many answers fewer were given
than at the rate just before, over the whole save, in number and in percent; "p95" is the time that 95 of 100 answers took at most,
just before and during the save. In the charts lines of saves under load are dashed.

`QUICK=1` is the same matrix with a third of the content and loads of 15 seconds, and begins no save after 20 minutes;
`--short` is a run of minutes to see that all works. The table and the charts are written anew after each save, so that a run that
is cut off, or ends with `--within`, leaves what it has measured: the last line says how much of the matrix that is. A size begins
with what has no delay.

The load begins after the author has come to rest, and its generator goes before author and save where this is run by root: one that
waits for a processor sends late, and what it tells is no result.

Needs the built program. Exit code: 0 measured, 1 a save or a load failed, 3 it could not run, or was ended.
"""
import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from backup_author import Author, Vault, ahead, end_process, end_well, is_quick, machine, require_room, run  # noqa: E402

DELAYS = (0, 1, 10)
USERS = 4
SHARE = 0.8
PLAN = """name = "an author at work"
target = "{target}"

[headers]
Authorization = "Basic {login}"

[load]
users = {users}
duration = "{seconds}s"
{every}

[[scenario]]
name = "traverse"
weight = 75
  [[scenario.step]]
  name = "traverse"
  path = "/content/lab/p${{__Random(1,{pages})}}.3.json"
  expect = {{ status = 200 }}

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


def edit(author, number):
    """Edits ten nodes, one commit each."""
    for page in range(10):
        author.post(f"/content/load/edited{page}", {"jcr:primaryType": "nt:unstructured", "./edit": str(number)})


class Load:
    """The requests of `tympan lab load run` by four users who wait for their answers, at so many a second, or as many as they get."""

    def __init__(self, author, folder, pages, seconds, rate=None):
        self.result = os.path.join(folder, "load.jtl")
        if os.path.exists(self.result):
            os.remove(self.result)
        plan = os.path.join(folder, "load.toml")
        with open(plan, "w") as out:
            every = f'every = "{USERS * 1e6 / rate:.0f}us"' if rate else ""
            out.write(PLAN.format(target=author.url, login=author.login, users=USERS, pages=pages, seconds=seconds, every=every))
        first, _ = ahead()
        self.patience = seconds + 300
        self.process = subprocess.Popen(
            [*first, author.program, "lab", "load", "run", plan, "--jtl", self.result],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            end_process(self.process, 10)

    def answers(self):
        """Ends, and returns when each answer was complete, in seconds since 1970, and how long it took."""
        said, errors = self.process.communicate(timeout=self.patience)
        # 1 is for goals that were missed; there are none that count here. 3 is for a machine that was too busy to send.
        self.is_late = self.process.returncode == 3
        if self.process.returncode not in (0, 1, 3) or not os.path.exists(self.result):
            text = (said + errors).decode()[-800:]
            raise RuntimeError(f"the load ended with {self.process.returncode}: {text}")
        with open(self.result) as file:
            # What a visit is as a whole stands in a row of its own, behind that of its one request.
            rows = [row for row in csv.DictReader(file) if row["URL"] != "null"]
        failed = [row for row in rows if row.get("success") == "false"]
        if len(failed) * 10 > len(rows) and not self.is_late:
            raise RuntimeError(f"{len(failed)} of {len(rows)} requests failed: {failed[0]}")
        return sorted(((int(row["timeStamp"]) + int(row["elapsed"])) / 1000, int(row["elapsed"])) for row in rows)


def between(answers, begin, end):
    """Returns how long the answers of a span took, sorted."""
    return sorted(took for at, took in answers if begin <= at < end)


def p95(times):
    return times[min(len(times) * 95 // 100, len(times) - 1)] if times else ""


def under_load(author, folder, pages, rate, seconds, save):
    """Saves under load. Returns the save, and what it cost those who were served; nothing of that where the load was not sent
    as it was asked for, which is no result."""
    with Load(author, folder, pages, seconds, rate) as load:
        lead = min(seconds * 0.4, 12)
        time.sleep(lead)
        saved = save()
        answers = load.answers()
    if load.is_late:
        return saved, {"lost": "", "lost_percent": ""}
    begin, end = saved["begin"], saved["end"]
    before = begin - lead * 0.6
    usual = between(answers, before, begin)
    # What the load itself no longer covers says nothing.
    end = min(end, answers[-1][0]) if answers else end
    given = between(answers, begin, end)
    expected = len(usual) / (begin - before) * max(end - begin, 0.001)
    return saved, {"lost": max(expected - len(given), 0), "lost_percent": 100 * (1 - len(given) / expected) if expected else 0,
                   "p95_before": p95(usual), "p95_during": p95(given)}


def measure(arguments, folder, rows):
    """Adds a row for each save, until there is no time left."""
    author = Author(arguments.program, folder)
    author.post("/content/load", {"jcr:primaryType": "sling:Folder"})
    vault = Vault(arguments.program, folder)
    filled, edits = 0, 0
    try:
        for size in arguments.sizes:
            while filled < size and time.monotonic() < arguments.deadline:
                author.fill(filled, arguments.pages, arguments.images)
                filled += 1
            if filled < size:
                return
            author.settle()
            with Load(author, folder, arguments.pages, arguments.seconds) as load:
                peak = load.answers()
            rate = max(len(peak) / (peak[-1][0] - peak[0][0]) * SHARE, 1) if len(peak) > 1 else 1
            facts = {"pages": size * arguments.pages, "mb": author.size() / 1e6, "rate": rate}
            require_room(folder, 3 * author.size(), "a size of the matrix")
            begin = time.time()
            # 1 is for a file that the author changed meanwhile.
            run(["sh", "-c", 'tar cf "$0/copy.tar" "$@" || [ $? -eq 1 ]', folder, *author.folders()])
            rows.append({**facts, "kind": "tar", "load": "idle", "delay": "", "seconds": time.time() - begin})
            keep(arguments, rows)
            os.remove(os.path.join(folder, "copy.tar"))
            idle = {}
            for delay in DELAYS:
                for loaded in (False, True):
                    for kind in ("full", "incremental"):
                        if time.monotonic() > arguments.deadline:
                            return
                        if kind == "full":
                            vault.renew()
                        else:
                            edits += 1
                            edit(author, edits)
                        save = lambda: vault.save("--no-view", "--delay-ms", str(delay), f"repo:{author.home}")
                        row = {**facts, "kind": kind, "load": "80 %" if loaded else "idle", "delay": delay}
                        if loaded:
                            # The load has to last longer than the save, which takes longer than without.
                            lasts = max(arguments.seconds, round(8 + 2.5 * idle[kind, delay]))
                            saved, cost = under_load(author, folder, arguments.pages, rate, lasts, save)
                            row.update(cost)
                        else:
                            saved = save()
                            idle[kind, delay] = saved["seconds"]
                        added = saved.get("data_added_packed", 0) / 1e6
                        rows.append({**row, "seconds": saved["seconds"], "cpu": saved["cpu"], "added_mb": added})
                        keep(arguments, rows)
    finally:
        author.end()


def keep(arguments, rows):
    """Prints the last row, and writes the table and the charts."""
    tell(rows[-1])
    os.makedirs(arguments.out, exist_ok=True)
    names = ["pages", "mb", "rate", "kind", "load", "delay", "seconds", "cpu", "added_mb", "lost", "lost_percent", "p95_before",
             "p95_during"]
    with open(os.path.join(arguments.out, "matrix.csv"), "w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
    chart(os.path.join(arguments.out, "time-by-pages.svg"), rows, "pages", "pages")
    chart(os.path.join(arguments.out, "time-by-size.svg"), rows, "mb", "MB")


def tell(row):
    lost = ""
    if "lost" in row:
        lost = "the machine was too busy"
        if row["lost"] != "":
            lost = f"{row['lost']:8.0f} {row['lost_percent']:6.1f} %   {row['p95_before']}, {row['p95_during']} ms"
    cpu, added = ("", "") if row["kind"] == "tar" else (f"{row['cpu']:.2f}", f"{row['added_mb']:.2f}")
    print(f"{row['pages']:7} {row['mb']:9.1f} {row['kind']:12} {row['load']:5} {row['delay']!s:>3} {row['seconds']:9.2f} {cpu:>7} "
          f"{added:>9} {row['mb'] / row['seconds']:9.1f} {lost}", flush=True)


def chart(file, rows, axis, label):
    """Draws the time of saves against pages or size, one line for each kind and delay, dashed for those under load."""
    lines = {}
    for row in rows:
        name = row["kind"] if row["kind"] == "tar" else f"{row['kind']}, {row['delay']} ms"
        lines.setdefault((name, row["load"] == "idle"), []).append((row[axis], row["seconds"]))
    width, height, left, bottom = 760, 420, 60, 50
    most_x = max(x for line in lines.values() for x, _ in line)
    most_y = max(y for line in lines.values() for _, y in line)
    names = list(dict.fromkeys(name for name, _ in lines))
    place = lambda x, y: (left + x / most_x * (width - left - 180), height - bottom - y / most_y * (height - bottom - 20))
    colors = ["#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#b8860b", "#444444", "#008b8b"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<text x="{left}" y="{height - 12}">{label}, up to {most_x:.0f}</text>',
           f'<text x="{left}" y="14">seconds, up to {most_y:.2f}</text>']
    for (x1, y1), (x2, y2) in (((0, 0), (most_x, 0)), ((0, 0), (0, most_y))):
        (a, b), (c, d) = place(x1, y1), place(x2, y2)
        out.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#888"/>')
    for (name, is_idle), line in lines.items():
        number = names.index(name)
        color = colors[number % len(colors)]
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in sorted(line))
        dashes = "" if is_idle else ' stroke-dasharray="6 4"'
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>')
        if is_idle:
            out.append(f'<text x="{width - 170}" y="{30 + 18 * number}" fill="{color}">{name}</text>')
    with open(file, "w") as svg:
        svg.write("\n".join([*out, "</svg>\n"]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    parser.add_argument("--sizes", default="1,2,4,8", help="sizes of the content, in increments of `tympan lab author content`")
    pages, images, seconds, within = (230, 70, 15, 20) if is_quick() else (700, 200, 60, None)
    parser.add_argument("--pages", type=int, default=pages, help="of an increment")
    parser.add_argument("--images", type=int, default=images, help="of an increment")
    parser.add_argument("--seconds", type=int, default=seconds, help="how long the load lasts around each save")
    parser.add_argument("--within", type=float, default=within, metavar="MINUTES", help="begins no save after so long")
    parser.add_argument("--out", default=".")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.pages, arguments.images, arguments.seconds = 50, 10, 6
    arguments.sizes = sorted(int(size) for size in arguments.sizes.split(","))
    arguments.deadline = time.monotonic() + (60 * arguments.within if arguments.within else float("inf"))
    return arguments


def main():
    end_well()
    arguments = parse()
    if not os.path.exists(arguments.program):
        print(f"backup_matrix: there is no `{arguments.program}`", file=sys.stderr)
        return 3
    print(machine())
    print("the load generator goes before what it measures" if ahead()[0] else "the load generator competes with what it measures: only "
          "root may let it go first")
    print(f"{'pages':>7} {'MB':>9} {'kind':12} {'load':5} {'ms':>3} {'seconds':>9} {'CPU':>7} {'new MB':>9} {'MB/s':>9} {'lost':>8} "
          f"{'':8}   p95")
    rows, failed = [], 0
    with tempfile.TemporaryDirectory(prefix="tympan-backup-matrix-") as folder:
        try:
            measure(arguments, folder, rows)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"backup_matrix: {error}", file=sys.stderr)
            failed = 1
    # A row for `tar`, and one for each kind of save, idle and loaded, with each delay.
    whole = len(arguments.sizes) * (1 + 4 * len(DELAYS))
    print(f"{len(rows)} of {whole} measured" + (f", in {arguments.out}" if rows else ""))
    return failed


if __name__ == "__main__":
    sys.exit(main())
