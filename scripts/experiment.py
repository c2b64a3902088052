#!/usr/bin/env python3
"""Repeats a published dispatcher experiment on this machine and prints its table.

Usage: scripts/experiment.py E1 [--program PATH] [--modes herd,refetch,collapse,soft] [--jmeter PATH] [--plan PATH]

E1  An author edits a page that takes 10 s to draw and activates it; the publisher flushes the dispatcher; within a second
    100 visitors come over 10 s, and ask for 20 s (the unmodified JMeter plan of adobe/aem-dispatcher-experiments). What
    changes from run to run is the publisher's agent and how the dispatcher obeys it:
      herd      agent `flush`; visitors do not wait for each other (`/x-collapseWait "0"`), as the original does
      refetch   agent `flush_refetch`
      collapse  agent `flush`; visitors of an absent page wait for one render
      soft      agent `flush`; `/x-flushMode "soft"` serves the old page meanwhile
    Renders are counted in the publisher's request.log; the cached file is looked at every 10 ms.

Needs the built program, Java with JMeter (`peers/jmeter.sh` installs it), and port 8080 free. Exit code: 0 the expected
numbers, 1 other ones, 3 it could not run.
"""
import argparse
import base64
import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

PAGE = "/content/dispatchertester/us/en/page-with-bad-component"
VISITORS = "127.0.0.1:8080"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AGENT = {"herd": "flush", "refetch": "flush_refetch", "collapse": "flush", "soft": "flush"}
CACHE = {"herd": '/x-collapseWait "0"', "refetch": '/x-collapseWait "0"', "collapse": "", "soft": '/x-flushMode "soft"'}
EXPECTED = {"herd": (90, 10**9), "refetch": (1, 1), "collapse": (1, 1), "soft": (1, 1)}


class Process:
    """A program that says `ready`, ended by its own id."""

    def __init__(self, program, arguments, log):
        self.log = open(log, "ab")
        self.child = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=self.log)
        for line in self.child.stdout:
            if line.strip() == b"ready":
                break
        else:
            raise RuntimeError(f"{arguments} did not get ready; see {log}")
        threading.Thread(target=lambda: [None for _ in self.child.stdout], daemon=True).start()

    def stop(self):
        self.child.send_signal(signal.SIGINT)
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def cpu_seconds(self):
        with open(f"/proc/{self.child.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self):
        return len(os.listdir(f"/proc/{self.child.pid}/task"))


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


class Farm:
    """Author and publisher with the sample site, and a dispatcher for each run."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.author_at, self.publish_at = free_address(), free_address()
        home = os.path.join(folder, "home")
        addresses = ["--author", self.author_at, "--publish", self.publish_at, "--dispatcher", VISITORS]
        # The demo imports the site and its agents; then each role runs as a process of its own.
        Process(program, ["demo", "--home", home, *addresses], self.path("demo.log")).stop()
        for role in ("author", "publish"):
            shutil.copy(os.path.join(home, "replication.key"), os.path.join(home, role))
        with open(os.path.join(home, "author", "initial-password")) as file:
            self.password = file.read().strip()
        start = lambda role, at: Process(
            program, [role, "--home", os.path.join(home, role), "--listen", at], self.path(f"{role}.log"))
        self.author = start("author", self.author_at)
        self.publish = start("publish", self.publish_at)
        self.requests = os.path.join(home, "publish", "logs", "request.log")
        self.dispatcher = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def send(self, path, properties):
        """Edits a page and activates it."""
        data = urllib.parse.urlencode(properties)
        for body in (data, ":operation=activate"):
            url = f"http://{self.author_at}{path}"
            request = urllib.request.Request(url, body.encode(), {"Accept": "application/json"})
            token = base64.b64encode(f"admin:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
            urllib.request.urlopen(request, timeout=60).read()

    def begin(self, mode):
        """Starts a dispatcher with an empty cache, and lets the publisher flush it as the mode says."""
        if self.dispatcher:
            self.dispatcher.stop()
        home = self.path(mode)
        os.makedirs(os.path.join(home, "cache"), exist_ok=True)
        host, port = self.publish_at.split(":")
        with open(os.path.join(home, "dispatcher.any"), "w") as file:
            file.write(CONFIG % {"host": host, "port": port, "docroot": os.path.join(home, "cache"), "cache": CACHE[mode]})
        self.dispatcher = Process(
            self.program, ["dispatcher", "--home", home, "--listen", VISITORS], self.path(f"dispatcher-{mode}.log"))
        self.send("/etc/replication/agents.publish/flush", {"jcr:content/serializationType": AGENT[mode]})
        time.sleep(3)
        self.file = os.path.join(home, "cache", PAGE[1:] + ".html")
        self.visit()

    def visit(self):
        return urllib.request.urlopen(f"http://{VISITORS}{PAGE}.html", timeout=60).read().decode()

    def stop(self):
        for process in (self.dispatcher, self.publish, self.author):
            if process:
                process.stop()


CONFIG = """/farms { /site {
  /clientheaders { "*" }  /virtualhosts { "*" }
  /renders { /publish { /hostname "%(host)s" /port "%(port)s" } }
  /filter { /0 { /type "deny" /url "*" } /1 { /type "allow" /url "/content/*" } }
  /cache {
    /docroot "%(docroot)s"  /statfileslevel "0"  %(cache)s
    /rules { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "/content/*" } }
    /invalidate { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "*.html" } }
    /allowedClients { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "127.0.0.1" } }
  }
} }
"""


class Watch(threading.Thread):
    """Looks at the cached file and at the publisher every 10 ms."""

    def __init__(self, farm):
        super().__init__(daemon=True)
        self.farm, self.is_over = farm, False
        self.polls = self.absent = self.changes = self.threads = 0

    def run(self):
        last = None
        while not self.is_over:
            try:
                stat = os.stat(self.farm.file)
                now = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                self.changes += last is not None and now != last
                last = now
            except FileNotFoundError:
                self.absent += 1
            if self.polls % 50 == 0:
                self.threads = max(self.threads, self.farm.publish.threads())
            self.polls += 1
            time.sleep(0.01)


def renders(log, offset):
    """Returns how often the page was asked for since `offset`, and how many renders were in flight at most."""
    asked, open_numbers, most = 0, set(), 0
    with open(log, errors="replace") as file:
        file.seek(offset)
        for line in file:
            found = re.search(r"\[(\d+)\] (->|<-) ?(.*)", line)
            if not found:
                continue
            number, way, rest = found.groups()
            if way == "->" and rest.startswith(f"GET {PAGE}.html"):
                asked += 1
                open_numbers.add(number)
                most = max(most, len(open_numbers))
            elif way == "<-":
                open_numbers.discard(number)
    return asked, most


def jmeter(arguments, folder, name):
    """Runs the plan, and returns the summary: samples, rate, p50, p99, max, errors."""
    hosts = os.path.join(folder, "hosts")
    with open(hosts, "w") as file:
        file.write("127.0.0.1 localhost aem-publish.local\n")
    out = os.path.join(folder, f"jmeter-{name}")
    environment = dict(os.environ, JAVA_TOOL_OPTIONS=f"-Djdk.net.hosts.file={hosts}")
    command = ["bash", arguments.jmeter, "-o", out, arguments.plan, "-Jrampup=10", "-Jthreads=100", "-Jduration=20"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    table = os.path.join(out, "results.jtl")
    if not os.path.exists(table):
        raise RuntimeError(f"JMeter gave no results: {result.stdout}{result.stderr}")
    with open(table) as file:
        rows = [row for row in csv.DictReader(file) if row["URL"] != "null"]
    times = sorted(int(row["elapsed"]) for row in rows)
    begin = min(int(row["timeStamp"]) for row in rows)
    end = max(int(row["timeStamp"]) + int(row["elapsed"]) for row in rows)
    part = lambda share: times[min(len(times) - 1, int(len(times) * share))]
    errors = sum(row["success"] != "true" for row in rows)
    return len(rows), len(rows) * 1000 / max(1, end - begin), part(0.5), part(0.99), times[-1], errors


def e1(arguments, folder):
    farm = Farm(arguments.program, folder)
    rows, steady, is_expected = [], None, True
    try:
        for mode in arguments.modes.split(","):
            farm.begin(mode)
            if steady is None:
                # A short run first, so that neither Java nor the page cache is cold in one of the others.
                steady = jmeter(arguments, folder, "steady")
                rows.append(("steady", *steady, 0, 0, 0.0, 0, 0, 0))
            title = f"E1 {mode} {int(time.time())}"
            offset, cpu = os.path.getsize(farm.requests), farm.publish.cpu_seconds()
            watch = Watch(farm)
            watch.start()
            farm.send(PAGE, {"jcr:content/jcr:title": title})
            summary = jmeter(arguments, folder, mode)
            deadline = time.time() + 60
            while title not in farm.visit() and time.time() < deadline:
                time.sleep(0.5)
            watch.is_over = True
            watch.join()
            count, most = renders(farm.requests, offset)
            spent = farm.publish.cpu_seconds() - cpu
            rows.append((mode, *summary, count, most, spent, watch.threads, watch.absent, watch.changes))
            least, greatest = EXPECTED[mode]
            is_expected &= least <= count <= greatest and summary[5] == 0
            if mode == "refetch":
                ratio = summary[1] / steady[1]
                is_expected &= ratio >= 0.95 and watch.absent == 0 and watch.changes == 1
                print(f"refetch: {ratio:.2f} of the steady state's throughput; the file was absent at {watch.absent} of "
                      f"{watch.polls} looks and changed {watch.changes} times", flush=True)
    finally:
        farm.stop()
    head = ("mode", "samples", "per s", "p50 ms", "p99 ms", "max ms", "errors", "renders", "at once", "publish CPU s",
            "threads", "absent", "changes")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row) + " |")
    return is_expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["E1"])
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    parser.add_argument("--modes", default="herd,refetch,collapse,soft")
    shared = os.path.join(ROOT, "..", "shared")
    parser.add_argument("--jmeter", default=os.path.join(shared, "peers/jmeter.sh"))
    plan = "fixtures/jmx/adobe__aem-dispatcher-experiments__Page-with-bad-component-test-plan.jmx"
    parser.add_argument("--plan", default=os.path.join(shared, plan))
    arguments = parser.parse_args()
    for file in (arguments.program, arguments.jmeter, arguments.plan):
        if not os.path.exists(file):
            print(f"experiment: there is no `{file}`", file=sys.stderr)
            return 3
    with tempfile.TemporaryDirectory(prefix="tympan-experiment-") as folder:
        try:
            return 0 if e1(arguments, folder) else 1
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"experiment: {error}", file=sys.stderr)
            return 3


sys.exit(main())
