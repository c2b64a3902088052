"""E4  gracePeriod. One visitor reads a page and flushes its parent, again and again for 10 s (the source's plan 4), with no
grace, with 2 s, and with flushes that count together each 2 s (`/x-flushWindow`). Then a steady stream of flushes shows what
the source does not: with a grace period the page never gets new, with the window it does.
"""
import os
import time

from .harness import Front, Goals, Render, Summary, Visitor, jmeter, table
from .plan import sampler, write

NEEDS_JMETER = True
STREAM_SECONDS = 600
PAGE = "/content/we-retail/us/en/products.html"
HANDLE = "/content/we-retail/us/en"
FLUSH = "/dispatcher/invalidate.cache"
CACHES = {
    "grace 0": "",
    "grace 2": '/gracePeriod "2"',
    "window 2": '/x-flushWindow "2"',
}


def stream(front, seconds):
    """Flushes twice a second and reads ten times a second; returns visits and the oldest page that a visitor got."""
    deadline, visits, oldest, flushed = time.time() + seconds, 0, 0.0, 0.0
    with Visitor(front.at) as visitor:
        while time.time() < deadline:
            if time.time() - flushed > 0.5:
                front.flush(HANDLE)
                flushed = time.time()
            _, body, _ = visitor.ask(PAGE)
            oldest = max(oldest, time.time() - float(body))
            visits += 1
            time.sleep(0.1)
    return visits, oldest


def run(arguments):
    goals, rows, streams, rates, drawn = Goals(), [], [], {}, {}
    headers = {"CQ-Action": "Activate", "CQ-Handle": HANDLE}
    steps = [("Read and flush", [sampler(PAGE), sampler(FLUSH, "POST", headers)])]
    file = write(os.path.join(arguments.folder, "grace.jmx"), "gracePeriod", steps, {})
    seconds = arguments.seconds or STREAM_SECONDS
    for name, cache in CACHES.items():
        render = Render(lambda path: (str(time.time()), {}))
        home = os.path.join(arguments.folder, name.replace(" ", "-"))
        with Front(arguments.program, home, [render], cache, "127.0.0.1:8080") as front:
            with Visitor(front.at) as visitor:
                visitor.ask(PAGE)
            render.forget()
            summary = jmeter(arguments, file, name.replace(" ", "-"), 1, 1, 10)
            rates[name], drawn[name] = summary.rate, render.count()
            rows.append((name, *summary.cells, summary.samples // 2, drawn[name]))
            print(f"{name}: {summary.line}", flush=True)
            goals.check(summary.errors == 0, f"{name}: {summary.errors} errors")
            # Nothing of the plan is left to become stale in the stream.
            time.sleep(5)
            render.forget()
            visits, oldest = stream(front, seconds)
            streams.append((name, seconds, visits, render.count(), oldest))
        render.stop()
    goals.check(drawn["grace 2"] <= 1, f"grace 2: {drawn['grace 2']} renders")
    goals.check(2 <= drawn["window 2"] <= 8, f"window 2: {drawn['window 2']} renders in 10 s")
    ratio = rates["grace 2"] / rates["grace 0"]
    goals.check(ratio >= 1.56, f"grace 2 gives {ratio:.2f} times the throughput of grace 0 (source: 1.56)")
    ages = {name: oldest for name, _, _, _, oldest in streams}
    goals.check(ages["grace 2"] > seconds * 0.8, f"grace 2: the page gets {ages['grace 2']:.0f} s old in {seconds} s of flushes")
    goals.check(ages["window 2"] < 4, f"window 2: the page gets {ages['window 2']:.1f} s old at most")
    table(("setting", *Summary.HEAD, "reads", "renders"), rows)
    print()
    table(("setting", "seconds of flushes", "reads", "renders", "oldest page s"), streams)
    return goals.are_met
