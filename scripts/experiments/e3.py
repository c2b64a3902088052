"""E3  ignoreUrlParams. Ten visitors walk through a shop of 21 URLs with `utm_source=newsletter` on every request, once
with a list that ignores no parameter, once with one that ignores all but those named, and once with the parameter as a key
that makes pages of their own (`/x-cacheKeyParams`). The stub draws one page at a time, 1.6 a second, as the publisher of the
source did.
"""
import os
import threading
import time

from .harness import Front, Goals, Render, Summary, Visitor, jmeter, table
from .plan import sampler, write

NEEDS_JMETER = True
PAGE_SECONDS = 0.625
SHOP = "/content/we-retail/us/en"
LIBRARY = "/etc.clientlibs/weretail/clientlibs"
TRANSACTIONS = [
    ("Home", [f"{SHOP}.html", f"{LIBRARY}/base.css", f"{LIBRARY}/base.js", "/content/dam/we-retail/logo.png",
              "/libs/granite/csrf/token.json", "/libs/granite/security/currentuser.json"]),
    ("Category", [f"{SHOP}/men.html", f"{SHOP}/women.html", f"{SHOP}/equipment.html", "/content/dam/we-retail/men.jpg",
                  "/content/dam/we-retail/women.jpg", f"{LIBRARY}/grid.css"]),
    ("Product", [f"{SHOP}/products/men/shirts/eton.html", f"{SHOP}/products/men/coats/portland.html",
                 f"{SHOP}/products/women/shorts/desert.html", "/content/dam/we-retail/eton.jpg",
                 "/content/dam/we-retail/portland.jpg", f"{LIBRARY}/product.js"]),
    ("Cart", [f"{SHOP}/user/cart.html", f"{SHOP}/user/checkout.html", f"{SHOP}/about-us.html"]),
]
CART = f"{SHOP}/user/_jcr_content/root/cart.json"
LISTS = {
    "deny-list": '/ignoreUrlParams { /0 { /type "deny" /glob "*" } }',
    "allow-list": '/ignoreUrlParams { /0 { /type "allow" /glob "*" } /1 { /type "deny" /glob "q" } }',
    "key-list": '/x-cacheKeyParams { /0 { /type "allow" /glob "utm_source" } }',
}


def plan(file):
    steps = [(name, [sampler(path) for path in paths]) for name, paths in TRANSACTIONS]
    for _, samplers in steps[1:]:
        samplers.append(sampler(CART, "POST"))
    return write(file, "We-Retail", steps, {"utm_source": "newsletter"})


def is_page(path):
    return path.endswith(".html")


def run(arguments):
    drawing = threading.Lock()

    def answer(url):
        path = url.split("?")[0]
        if is_page(path):
            with drawing:
                time.sleep(PAGE_SECONDS)
        kind = {"css": "text/css", "js": "application/javascript", "json": "application/json", "png": "image/png",
                "jpg": "image/jpeg"}.get(path.rsplit(".", 1)[-1], "text/html; charset=utf-8")
        return f"{path}\n" * 100, {"Content-Type": kind}

    goals, rows, rates = Goals(), [], {}
    file = plan(os.path.join(arguments.folder, "we-retail.jmx"))
    urls = {path for _, paths in TRANSACTIONS for path in paths}
    for name, ignored in LISTS.items():
        render = Render(answer)
        with Front(arguments.program, os.path.join(arguments.folder, name), [render], ignored, "127.0.0.1:8080") as front:
            # The source's pages were warm: what a request without parameters stores is there for all.
            with Visitor(front.at) as visitor:
                for path in sorted(urls):
                    visitor.ask(path)
            render.forget()
            summary = jmeter(arguments, file, name, 10, 10, arguments.seconds or 20)
            drawn, passed = render.count(is_page), render.count(lambda path: not is_page(path))
        render.stop()
        print(f"{name}: {summary.line}", flush=True)
        rates[name] = summary.rate
        rows.append((name, *summary.cells, drawn, passed))
        goals.check(summary.errors == 0, f"{name}: {summary.errors} errors")
        if name == "allow-list":
            goals.check(drawn == 0, f"{name}: {drawn} pages drawn")
        if name == "key-list":
            pages = sum(is_page(path) for path in urls)
            goals.check(drawn == pages, f"{name}: {drawn} pages drawn of {pages}, each for the first visitor who brought the parameter")
    ratio = rates["allow-list"] / rates["deny-list"]
    goals.check(ratio >= 390, f"the allow-list gives {ratio:.0f} times the throughput (source: 390)")
    table(("list", *Summary.HEAD, "pages drawn", "other requests"), rows)
    print(f"{len(urls)} URLs in {len(TRANSACTIONS)} transactions, 3 POSTs")
    return goals.are_met
