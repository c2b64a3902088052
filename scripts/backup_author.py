"""What the measurements of backups share: an author in a new home, a vault, and programs that must end well."""
import functools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode

PATIENCE = 300


class Author:
    """An author in a home, started by itself and ended by its own id."""

    def __init__(self, program, folder, home=None):
        self.program, self.home = program, home or os.path.join(folder, "author")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self.log = open(os.path.join(folder, "author.log"), "a")
        self.process = subprocess.Popen([program, "author", "--home", self.home, "--listen", self.address],
                                        stdout=self.log, stderr=self.log)
        self.password_file = os.path.join(self.home, "initial-password")
        limit = time.monotonic() + PATIENCE
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"the author does not start; see {self.log.name}")
            time.sleep(0.2)
        with open(self.password_file) as file:
            password = file.read().split("\n")[0]
        self.login = b64encode(f"admin:{password}".encode()).decode()

    def answers(self):
        try:
            urllib.request.urlopen(self.url + "/health", timeout=5).read()
            return os.path.exists(self.password_file)
        except urllib.error.HTTPError:
            return os.path.exists(self.password_file)
        except OSError:
            return False

    def ask(self, path, data, kind):
        headers = {"Authorization": "Basic " + self.login, "Referer": self.url + "/", "Content-Type": kind}
        try:
            urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=PATIENCE).read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read()[:300]}") from error

    def post(self, path, form):
        data = "&".join(f"{name}={value}" for name, value in form.items()).encode()
        self.ask(path, data, "application/x-www-form-urlencoded")

    def copy(self, old, new):
        self.ask("/api/v1/nodes/copy", json.dumps({"from": old, "to": new}).encode(), "application/json")

    def fill(self, increment, pages, images):
        run([self.program, "lab", "author", "content", "--author", self.url, "--password-file", self.password_file, "--from",
             str(increment), "--increments", "1", "--pages", str(pages), "--images", str(images), "--tags", "20"])

    def folders(self):
        return [os.path.join(self.home, name) for name in ("store", "blobs")]

    def size(self):
        files = (os.path.join(above, name) for folder in self.folders() for above, _, names in os.walk(folder)
                 for name in names)
        return sum(os.path.getsize(file) for file in files if os.path.exists(file))

    def settle(self, quiet=4, limit=600):
        """Waits until nothing has been written for some seconds: what was uploaded is made into renditions meanwhile, which
        takes the processors and adds to what a save finds. Says so aloud if it never ends."""
        begin = since = time.monotonic()
        size = self.size()
        while time.monotonic() - since < quiet:
            if time.monotonic() - begin > limit:
                print(f"the author has not come to rest within {limit} s; measured beside its own work", file=sys.stderr)
                return
            time.sleep(1)
            now = self.size()
            if now != size:
                size, since = now, time.monotonic()

    def end(self):
        if self.process.poll() is None:
            end_process(self.process)
        self.log.close()


class Vault:
    """A vault in a folder, and the runs of `tympan backup` on it."""

    def __init__(self, program, folder, name="vault"):
        self.program, self.place = program, os.path.join(folder, name)
        self.environment = dict(os.environ, TYMPAN_VAULT_PASSWORD="measured", RESTIC_PASSWORD="measured",
                                XDG_STATE_HOME=os.path.join(folder, "state"), XDG_CACHE_HOME=os.path.join(folder, "cache"))
        self.environment.pop("TYMPAN_VAULT", None)

    def renew(self):
        if os.path.exists(self.place):
            shutil.rmtree(self.place)
        self.run("init")

    def words(self, word, *arguments):
        return [self.program, "backup", word, "-r", self.place, "--json", *arguments]

    def run(self, word, *arguments):
        """Runs a command that must end well; returns the objects that it prints."""
        return objects(run(self.words(word, *arguments), env=self.environment))

    def save(self, *arguments):
        """Saves; returns what the save says of itself, with when it began and ended, and its seconds of CPU."""
        before, begin = cpu_of_children(), time.time()
        said = self.run("save", *arguments)
        end = time.time()
        summary = next((one for one in said if one.get("message_type") in ("summary", "unchanged")), None)
        if summary is None or summary.get("errors"):
            raise RuntimeError(f"a save came to nothing: {said}")
        return {**summary, "begin": begin, "end": end, "seconds": end - begin, "cpu": cpu_of_children() - before,
                "said": said}


def end_well():
    """Lets a signal to end take away what was started and made."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(3))


def end_process(process, patience=120):
    """Ends a process that was started here, by its own id."""
    process.terminate()
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_quick():
    """Tells whether a short form was asked for, by `QUICK=1`."""
    return os.environ.get("QUICK", "0") not in ("", "0")


def require_room(folder, need, who):
    """Refuses to begin where a disk has not that many bytes left."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise RuntimeError(f"`{folder}` has {free / 1e9:.1f} GB left, and {who} needs {need / 1e9:.1f} GB; TMPDIR names another folder")


@functools.cache
def ahead():
    """Returns words before a load generator that let it go before what it measures, where that is allowed: one that waits for a
    processor sends late, and what it tells is no result. The second words put back what the generator itself starts."""
    first, back = ["nice", "-n", "-10"], ["nice", "-n", "10"]
    try:
        levels = [int(run([*words, "nice"])) for words in ([], first)]
    except (RuntimeError, OSError, ValueError):
        return [], []
    return (first, back) if levels[0] - levels[1] == 10 else ([], [])


def cpu_of_children():
    """Returns the seconds of CPU of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def objects(text):
    return [json.loads(line) for line in text.strip().split("\n") if line]


def run(words, **more):
    """Runs a program that must end well; returns what it writes."""
    done = subprocess.run(words, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more})
    if done.returncode != 0:
        said = done.stdout + (done.stderr or "")
        raise RuntimeError(f"{' '.join(words[:4])} ended with {done.returncode}: {said[-500:]}")
    return done.stdout


def machine():
    """Says what the machine has and how busy it is, for the conditions of a table."""
    with open("/proc/loadavg") as file:
        load = " ".join(file.read().split()[:3])
    return f"{os.cpu_count()} processors, load {load}"
