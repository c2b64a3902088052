"""What all experiments share: processes, a render that counts, a dispatcher in front of it, JMeter, tables."""
import csv
import http.client
import http.server
import os
import re
import signal
import socket
import subprocess
import threading
import time


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


class Render:
    """A stub in place of publish: answers by a function from a path to (body, headers), and counts what it was asked."""

    def __init__(self, answer):
        render = self
        self.counts, self.lock = {}, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # The answer's head and body would wait for each other's acknowledgment otherwise.
            disable_nagle_algorithm = True

            def reply(self):
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                with render.lock:
                    path = self.path.split("?")[0]
                    render.counts[path] = render.counts.get(path, 0) + 1
                body, headers = answer(self.path)
                body = body.encode()
                self.send_response(200)
                for name, value in {"Content-Type": "text/html; charset=utf-8", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_POST = do_HEAD = reply

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def count(self, matches=lambda path: True):
        with self.lock:
            return sum(count for path, count in self.counts.items() if matches(path))

    def forget(self):
        with self.lock:
            self.counts.clear()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


CONFIG = """/farms { /site {
  /clientheaders { "*" }  /virtualhosts { "*" }
  /renders { %(renders)s }
  /filter { /0 { /type "allow" /url "*" } }
  /cache {
    /docroot "%(docroot)s"
    /rules { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "/content/*" } /2 { /type "allow" /glob "/etc.clientlibs/*" } }
    /invalidate { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "*.html" } }
    /allowedClients { /0 { /type "deny" /glob "*" } /1 { /type "allow" /glob "127.0.0.1" } }
    %(cache)s
  }
} }
"""


class Front:
    """A dispatcher with an empty cache in front of renders; `with` stops it."""

    def __init__(self, program, home, renders, cache="", listen=None):
        self.home, self.docroot = home, os.path.join(home, "cache")
        os.makedirs(self.docroot, exist_ok=True)
        self.at, self.admin_at = listen or free_address(), free_address()
        written = "".join(
            f'/r{number} {{ /hostname "127.0.0.1" /port "{render.port}" }} ' for number, render in enumerate(renders))
        with open(os.path.join(home, "dispatcher.any"), "w") as file:
            file.write(CONFIG % {"renders": written, "docroot": self.docroot, "cache": cache})
        with open(os.path.join(home, "tympan.toml"), "w") as file:
            file.write(f'[dispatcher.admin]\naddress = "{self.admin_at}"\n')
        arguments = ["dispatcher", "--home", home, "--listen", self.at]
        self.process = Process(program, arguments, os.path.join(home, "log"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stop()

    def file(self, path):
        return self.docroot + path

    def metric(self, name):
        """The sum of a counter or gauge over its labels."""
        connection = http.client.HTTPConnection(self.admin_at, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        values = re.findall(rf"^tympan_dispatcher_{name}(?:{{[^}}]*}})? ([0-9.]+)$", text, re.M)
        return sum(float(value) for value in values)

    def flush(self, handle, headers=None, refetch=()):
        body = "".join(f"{uri}\n" for uri in refetch)
        headers = {"CQ-Action": "Activate", "CQ-Handle": handle, "Content-Type": "text/plain", **(headers or {})}
        with Visitor(self.at) as agent:
            status, _, _ = agent.ask("/dispatcher/invalidate.cache", "POST", headers, body)
        if status != 200:
            raise RuntimeError(f"a flush of {handle} was answered with {status}")


class Visitor:
    """A client that keeps its connection."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def ask(self, path, method="GET", headers=None, body=None):
        """Returns status, body and how many seconds it took."""
        begun = time.monotonic()
        self.connection.request(method, path, body=body, headers=headers or {})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        return answer.status, text, time.monotonic() - begun


def part(sorted_values, share):
    """The value below which a share of the values lies."""
    if not sorted_values:
        return 0
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


class Summary:
    """What JMeter or the lab measured; its own line as it printed it."""

    HEAD = ("samples", "per s", "p50 ms", "p99 ms", "max ms", "errors", "waited")

    def __init__(self, rows, line):
        times = sorted(int(row["elapsed"]) for row in rows)
        begin = min(int(row["timeStamp"]) for row in rows)
        end = max(int(row["timeStamp"]) + int(row["elapsed"]) for row in rows)
        self.line, self.samples = line, len(rows)
        self.rate = len(rows) * 1000 / max(1, end - begin)
        self.errors = sum(row["success"] != "true" for row in rows)
        self.p99 = part(times, 0.99)
        # Visitors who waited for a page of 10 s to be drawn: nothing else takes so long, on a crowded machine either.
        self.waited = sum(time > 5000 for time in times)
        self.cells = (self.samples, self.rate, part(times, 0.5), self.p99, times[-1], self.errors, self.waited)


def play(load, arguments, *run):
    """Runs a plan in JMeter or in the lab."""
    return (lab if load == "lab" else jmeter)(arguments, *run)


def lab(arguments, plan, name, rampup, threads, duration):
    """Runs a plan in the lab with `aem-publish.local` mapped to this machine."""
    out = os.path.join(arguments.folder, f"lab-{name}")
    os.makedirs(out, exist_ok=True)
    results = os.path.join(out, "results.jtl")
    if os.path.exists(results):
        os.remove(results)
    command = [os.path.abspath(arguments.program), "lab", "jmeter", "-n", "-t", os.path.abspath(plan), "-l", results,
               "--resolve", "aem-publish.local=127.0.0.1", f"-Jrampup={rampup}", f"-Jthreads={threads}", f"-Jduration={duration}"]
    # Result files that the plan itself names are written where it runs.
    result = subprocess.run(command, cwd=out, capture_output=True, text=True, timeout=duration + 300)
    # A lab that was at its limits says so with 3; here the machine is the limit in any case.
    if result.returncode not in (0, 3):
        raise RuntimeError(f"the lab gave no results: {result.stdout}{result.stderr}")
    return summary_of(results, result)


def jmeter(arguments, plan, name, rampup, threads, duration):
    """Runs a plan in JMeter with `aem-publish.local` mapped to this machine."""
    hosts = os.path.join(arguments.folder, "hosts")
    with open(hosts, "w") as file:
        file.write("127.0.0.1 localhost aem-publish.local\n")
    out = os.path.join(arguments.folder, f"jmeter-{name}")
    environment = dict(os.environ, JAVA_TOOL_OPTIONS=f"-Djdk.net.hosts.file={hosts}")
    command = ["bash", os.path.abspath(arguments.jmeter), "-o", os.path.abspath(out), os.path.abspath(plan)]
    command += [f"-Jrampup={rampup}", f"-Jthreads={threads}", f"-Jduration={duration}"]
    # Plans write results of their own into the folder where they run.
    result = subprocess.run(
        command, cwd=arguments.folder, env=environment, capture_output=True, text=True, timeout=duration + 300)
    return summary_of(os.path.join(out, "results.jtl"), result)


def summary_of(results, result):
    """Reads what a run wrote."""
    if not os.path.exists(results):
        raise RuntimeError(f"the plan gave no results: {result.stdout}{result.stderr}")
    with open(results) as file:
        # Transactions have no URL of their own.
        rows = [row for row in csv.DictReader(file) if row["URL"] != "null"]
    if not rows:
        raise RuntimeError(f"the plan asked for nothing: {result.stdout}{result.stderr}")
    lines = [line.strip() for line in result.stdout.splitlines() if line.startswith("summary =")]
    # A million lines each; an experiment of many runs would fill a disk.
    os.remove(results)
    return Summary(rows, lines[-1] if lines else "(no summary line)")


def table(head, rows):
    """Prints a table as Markdown."""
    cell = lambda value: f"{value:.1f}" if isinstance(value, float) else str(value)
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(cell(value) for value in row) + " |", flush=True)


class Goals:
    """What an experiment has to show."""

    def __init__(self):
        self.are_met = True

    def check(self, is_met, text):
        self.are_met &= bool(is_met)
        print(f"{'met' if is_met else 'NOT MET'}: {text}", flush=True)
