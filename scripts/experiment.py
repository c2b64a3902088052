#!/usr/bin/env python3
"""Repeats a dispatcher experiment on this machine and prints its table.

Usage: scripts/experiment.py E1 [--program PATH] [--modes herd,refetch,collapse,soft] [--load jmeter,lab] [--pairs N] [--jmeter PATH] [--plan PATH]
       scripts/experiment.py E2 [--program PATH] [--seconds N]

Needs the built program. E1, E3 and E4 also need Java with JMeter (`peers/jmeter.sh` installs it) and port 8080 free. Exit
code: 0 the expected numbers, 1 other ones, 3 it could not run.

"""
import argparse
import importlib
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = [f"E{number}" for number in range(1, 10)]


def load(name):
    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    return importlib.import_module(f"experiments.{name.lower()}")


def parse():
    about = __doc__ + "\n".join(load(name).__doc__ for name in NAMES)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=NAMES)
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/tympan"))
    parser.add_argument("--modes", default="herd,refetch,collapse,soft", help="of E1")
    parser.add_argument("--load", default="jmeter", help="what runs the plan of E1: jmeter, lab, or jmeter,lab")
    parser.add_argument("--pairs", type=int, default=3, help="how often E1 compares a re-fetch with the steady state")
    parser.add_argument("--seconds", type=int, help="how long E2 and E3 measure, and the stream of flushes of E4 lasts")
    parser.add_argument("--shared", default=os.path.join(ROOT, "..", "shared"), help="where `peers` and `fixtures` are")
    parser.add_argument("--jmeter")
    parser.add_argument("--plan")
    arguments = parser.parse_args()
    plan = "fixtures/jmx/adobe__aem-dispatcher-experiments__Page-with-bad-component-test-plan.jmx"
    arguments.jmeter = arguments.jmeter or os.path.join(arguments.shared, "peers/jmeter.sh")
    arguments.plan = arguments.plan or os.path.join(arguments.shared, plan)
    return arguments


def main():
    sys.dont_write_bytecode = True
    arguments = parse()
    experiment = load(arguments.experiment)
    needed = [arguments.program]
    if experiment.NEEDS_JMETER and arguments.load != "lab":
        needed += [arguments.jmeter]
    if experiment.NEEDS_JMETER:
        needed += [arguments.plan]
    for file in needed:
        if not os.path.exists(file):
            print(f"experiment: there is no `{file}`", file=sys.stderr)
            return 3
    with tempfile.TemporaryDirectory(prefix="tympan-experiment-") as folder:
        arguments.folder = folder
        try:
            return 0 if experiment.run(arguments) else 1
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(f"experiment: {error}", file=sys.stderr)
            return 3


sys.exit(main())
