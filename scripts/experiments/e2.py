"""E2  statfileslevel. Two trees of 20 pages; every second a page of one is published while visitors read both. How often
does a visitor of the other tree get a page from the cache, and how often is one drawn?
"""
import os
import random
import threading
import time

from .harness import Front, Goals, Render, Visitor, part, table

NEEDS_JMETER = False
SECONDS = 60
PAGES = 20
VISITORS = 4
TREES = ("a", "b")


def page(tree, number):
    return f"/content/site-{tree}/en/p{number}.html"


def visit(front, deadline, times, seed):
    """Reads pages of both trees in turn, about a hundred a second."""
    random_pages = random.Random(seed)
    with Visitor(front.at) as visitor:
        while time.monotonic() < deadline:
            for tree in TREES:
                status, _, took = visitor.ask(page(tree, random_pages.randrange(PAGES)))
                times[tree].append((took, status))
            time.sleep(0.02)


def run_level(arguments, level):
    render = Render(lambda path: (f"<p>{path} {time.time()}</p>", {}))
    home = os.path.join(arguments.folder, f"level-{level}")
    with Front(arguments.program, home, [render], f'/statfileslevel "{level}"') as front:
        for tree in TREES:
            with Visitor(front.at) as visitor:
                for number in range(PAGES):
                    visitor.ask(page(tree, number))
            # Both trees were published before, as any site was.
            front.flush(f"/content/site-{tree}/en/other")
        with Visitor(front.at) as visitor:
            for tree in TREES:
                for number in range(PAGES):
                    visitor.ask(page(tree, number))
        render.forget()
        seconds = arguments.seconds or SECONDS
        deadline = time.monotonic() + seconds
        times = {tree: [] for tree in TREES}
        threads = [threading.Thread(target=visit, args=(front, deadline, times, seed)) for seed in range(VISITORS)]
        for thread in threads:
            thread.start()
        flushes = 0
        while time.monotonic() < deadline:
            front.flush(f"/content/site-a/en/p{flushes % PAGES}")
            flushes += 1
            time.sleep(1)
        for thread in threads:
            thread.join()
        drawn = {tree: render.count(lambda path: path.startswith(f"/content/site-{tree}/")) for tree in TREES}
    render.stop()
    rows = []
    for tree in TREES:
        took = sorted(seconds * 1000 for seconds, _ in times[tree])
        errors = sum(status != 200 for _, status in times[tree])
        hits = 100 * (1 - drawn[tree] / len(took))
        role = "published" if tree == "a" else "other"
        rows.append((level, role, flushes, len(took), hits, drawn[tree], part(took, 0.5), part(took, 0.99), took[-1], errors))
    return rows


def run(arguments):
    goals, rows = Goals(), []
    for level in (0, 2, 4):
        measured = run_level(arguments, level)
        rows += measured
        flushes, drawn = measured[1][2], measured[1][5]
        if level == 0:
            goals.check(drawn >= flushes, f"level 0: {drawn} renders of the other tree for {flushes} flushes")
        else:
            goals.check(drawn == 0, f"level {level}: {drawn} renders of the other tree for {flushes} flushes")
        goals.check(sum(row[-1] for row in measured) == 0, f"level {level}: no errors")
    table(("level", "tree", "flushes", "visits", "from cache %", "renders", "p50 ms", "p99 ms", "max ms", "errors"), rows)
    return goals.are_met
