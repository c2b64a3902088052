"""E8  A storm of flushes: 1,000 handles in 10 s on a document root of 100,000 files. How long until it is quiet, how many
files go, and what do visitors of pages notice that no flush concerns?
"""
import os
import threading
import time

from .harness import Front, Goals, Render, Visitor, part, table

NEEDS_JMETER = False
FOLDERS, FILES = 1000, 100
FLUSHES, SECONDS = 1000, 10
AGENTS = 4


def fill(docroot):
    for folder in range(FOLDERS):
        path = os.path.join(docroot, "content", "site", f"f{folder}")
        os.makedirs(path)
        for number in range(FILES):
            with open(os.path.join(path, f"p{number}.html"), "w") as file:
                file.write("x" * 100)


def visit(front, is_over, times):
    with Visitor(front.at) as visitor:
        number = 0
        while not is_over.is_set():
            number += 1
            status, _, took = visitor.ask(f"/content/still/p{number % 50}.html")
            times.append((took * 1000, status))
            time.sleep(0.005)


def figures(times):
    took = sorted(took for took, _ in times)
    return len(took), part(took, 0.5), part(took, 0.99), took[-1], sum(status != 200 for _, status in times)


def run(arguments):
    render = Render(lambda path: (f"<p>{path}</p>", {}))
    goals = Goals()
    with Front(arguments.program, os.path.join(arguments.folder, "storm"), [render], '/statfileslevel "3"') as front:
        fill(front.docroot)
        with Visitor(front.at) as visitor:
            for number in range(50):
                visitor.ask(f"/content/still/p{number}.html")
        front.flush("/content/still/none")
        with Visitor(front.at) as visitor:
            for number in range(50):
                visitor.ask(f"/content/still/p{number}.html")
        render.forget()
        rows, is_over, times = [], threading.Event(), []
        thread = threading.Thread(target=visit, args=(front, is_over, times))
        thread.start()
        time.sleep(SECONDS)
        quiet = figures(times)
        times.clear()
        begun, answered = time.monotonic(), []

        def send(agent):
            for number in range(agent, FLUSHES, AGENTS):
                time.sleep(max(0, begun + number * SECONDS / FLUSHES - time.monotonic()))
                asked = time.monotonic()
                front.flush(f"/content/site/f{number}/p{number % FILES}")
                answered.append((time.monotonic() - asked) * 1000)

        agents = [threading.Thread(target=send, args=(agent,)) for agent in range(AGENTS)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        storm_took = time.monotonic() - begun
        storm = figures(times)
        is_over.set()
        thread.join()
        gone = sum(not os.path.exists(front.file(f"/content/site/f{number}/p{number % FILES}.html")) for number in range(FLUSHES))
        removed, flushed = front.metric("files_deleted_total"), front.metric("flushes_total")
        drawn = render.count()
    render.stop()
    answered.sort()
    rows = [("before", *quiet, "-"), ("in the storm", *storm, drawn)]
    goals.check(gone == FLUSHES, f"{gone} of {FLUSHES} named files are gone; {removed:.0f} files were unlinked by {flushed:.0f} flushes")
    goals.check(storm_took < SECONDS + 2, f"quiet {storm_took:.1f} s after the first of {FLUSHES} flushes, sent over {SECONDS} s")
    goals.check(drawn == 0, f"{drawn} renders of pages that no flush concerns")
    goals.check(storm[2] <= 2 * quiet[2], f"visitors' p99 is {storm[2] / quiet[2]:.2f} of that before")
    table(("visitors", "visits", "p50 ms", "p99 ms", "max ms", "errors", "renders"), rows)
    print(f"a flush was answered after {part(answered, 0.5):.1f} ms in the median and {answered[-1]:.1f} ms at most")
    return goals.are_met
