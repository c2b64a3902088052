"""E1  Re-fetching flush. An author edits a page that takes 10 s to draw and activates it; the publisher flushes the
dispatcher; within a second 100 visitors come over 10 s, and ask for 20 s (the unmodified JMeter plan of
adobe/aem-dispatcher-experiments). What changes from run to run is the publisher's agent and how the dispatcher obeys it:
  herd      agent `flush`; visitors do not wait for each other (`/x-collapseWait "0"`), as the original does
  refetch   agent `flush_refetch`
  collapse  agent `flush`; visitors of an absent page wait for one render
  soft      agent `flush`; `/x-flushMode "soft"` serves the old page meanwhile
Renders are counted in the publisher's request.log; the cached file is looked at every 10 ms. The steady state is the
same plan for the same time without a flush, after a run that only warms up. Runs with a re-fetch and without take turns
(`--pairs`), and each re-fetch is compared with the mean of the steady runs before and after it. With `--load lab` the lab
runs the plan, with `--load jmeter,lab` both do, one mode after the other: both must tell the modes apart.
"""
import base64
import os
import re
import shutil
import threading
import time
import urllib.parse
import urllib.request

from .harness import Goals, Process, Summary, free_address, play, table

NEEDS_JMETER = True
PAGE = "/content/dispatchertester/us/en/page-with-bad-component"
VISITORS = "127.0.0.1:8080"
AGENT = {"herd": "flush", "refetch": "flush_refetch", "collapse": "flush", "soft": "flush"}
CACHE = {"herd": '/x-collapseWait "0"', "refetch": '/x-collapseWait "0"', "collapse": "", "soft": '/x-flushMode "soft"'}
EXPECTED = {"herd": (90, 10**9), "refetch": (1, 1), "collapse": (1, 1), "soft": (1, 1)}


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
        self.longest = 0.0

    def run(self):
        last, looked = None, time.monotonic()
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
            self.longest = max(self.longest, time.monotonic() - looked)
            looked = time.monotonic()


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


def measure(arguments, farm, name, load, title=None):
    """One run of the plan, after an activation if there is a title; returns the summary and the row."""
    offset, cpu, own = os.path.getsize(farm.requests), farm.publish.cpu_seconds(), farm.dispatcher.cpu_seconds()
    watch = Watch(farm)
    watch.start()
    if title:
        farm.send(PAGE, {"jcr:content/jcr:title": title})
    # The plan is the next thing that starts, well within a second.
    summary = play(load, arguments, arguments.plan, name, 10, 100, 20)
    deadline = time.time() + 60
    while title and title not in farm.visit() and time.time() < deadline:
        time.sleep(0.5)
    watch.is_over = True
    watch.join()
    count, most = renders(farm.requests, offset)
    spent = farm.publish.cpu_seconds() - cpu
    # What else the machine does changes how many requests there are, and hardly what one costs.
    summary.cost = (farm.dispatcher.cpu_seconds() - own) * 1e6 / summary.samples
    row = (name, load, *summary.cells, summary.cost, count, most, spent, watch.threads, watch.absent, watch.changes)
    print(f"{name} by {load}: {summary.line}\n{name}: publish spent {spent:.1f} s of CPU, had {watch.threads} threads and {most} renders "
          f"in flight at most; the file was looked at {watch.polls} times, every {watch.longest * 1000:.0f} ms at the least",
          flush=True)
    return summary, row, watch


def check_mode(goals, mode, measured):
    """Checks what a run with a flush had to show."""
    summary, row, watch = measured
    least, greatest = EXPECTED[mode]
    count, load = row[3 + len(Summary.HEAD)], row[1]
    goals.check(least <= count <= greatest, f"{mode} by {load}: {count} renders")
    goals.check(summary.errors == 0, f"{mode} by {load}: {summary.errors} errors")
    # Who has to wait for a render tells re-fetch and soft from the other two; renders tell these apart.
    waits = mode in ("herd", "collapse")
    goals.check((summary.waited > 0) == waits, f"{mode} by {load}: {summary.waited} visitors waited for a render")
    if mode == "refetch":
        goals.check(watch.absent == 0 and watch.changes == 1, f"refetch by {load}: the file was absent at {watch.absent} of "
                    f"{watch.polls} looks and changed {watch.changes} times")


def take_turns(arguments, farm, goals, rows, load):
    """Steady runs and such with a re-fetch by turns; the re-fetch must not be felt."""
    # Neither Java nor the page cache may be cold in one of the runs that are compared.
    play(load, arguments, arguments.plan, "warm-up", 10, 100, 20)
    steady, ratios, costs, slowest = None, [], [], []
    for pair in range(1, arguments.pairs + 1):
        if steady is None:
            steady, row, _ = measure(arguments, farm, "steady", load)
            rows.append(row)
        measured = measure(arguments, farm, "refetch", load, f"E1 refetch {pair} {int(time.time())}")
        rows.append(measured[1])
        check_mode(goals, "refetch", measured)
        after, row, _ = measure(arguments, farm, "steady", load)
        rows.append(row)
        ratios.append(measured[0].rate / ((steady.rate + after.rate) / 2))
        costs.append(measured[0].cost / ((steady.cost + after.cost) / 2))
        slowest.append(measured[0].p99 / max(1, (steady.p99 + after.p99) / 2))
        steady = after
    middle = sorted(ratios)[len(ratios) // 2]
    goals.check(middle >= 0.95, f"refetch: {middle:.3f} of the steady state's throughput in the median of "
                + ", ".join(f"{ratio:.2f}" for ratio in ratios))
    middle = sorted(slowest)[len(slowest) // 2]
    goals.check(middle <= 2, f"refetch: p99 {middle:.2f} of the steady state's in the median of "
                + ", ".join(f"{ratio:.2f}" for ratio in slowest))
    print(f"refetch: a request costs the dispatcher {sorted(costs)[len(costs) // 2]:.3f} of the CPU of one in steady state")


def run(arguments):
    farm, goals, rows = Farm(arguments.program, arguments.folder), Goals(), []
    try:
        turns = [(mode, load) for mode in arguments.modes.split(",") for load in arguments.load.split(",")]
        for mode, load in turns:
            farm.begin(mode)
            if mode == "refetch":
                take_turns(arguments, farm, goals, rows, load)
                continue
            measured = measure(arguments, farm, mode, load, f"E1 {mode} {int(time.time())}")
            rows.append(measured[1])
            check_mode(goals, mode, measured)
    finally:
        farm.stop()
    table(("mode", "by", *Summary.HEAD, "CPU us each", "renders", "at once", "publish CPU s", "threads", "absent", "changes"), rows)
    return goals.are_met
