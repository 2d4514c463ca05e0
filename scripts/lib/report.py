"""The results of a bench: rows with their bars, a table for people, one line of JSON for scripts.

A row is a dictionary: name, value, unit, runs (from which the value was taken), bar, and what else the bench knows
about it.  The value must not be above the bar, or, with at_least, not below it.  A bar of None marks a figure to
compare with.
"""

import glob
import json
import os
import statistics

from mounts import TARGET, TOP


def row(name, runs, unit="x", bar=None, value=None, digits=4, **more):
    """A row whose value is the median of `runs`, unless it is given."""
    runs = [round(run, digits) for run in runs]
    if value is None and runs:
        value = round(statistics.median(runs), digits)
    out = {"name": name, "value": value, "unit": unit, "runs": runs, "bar": bar, **more}
    if value is None:
        out.setdefault("note", "no run")
    return out


def quartiles(runs):
    """q1 and q3 of some runs, as fields of a row."""
    if len(runs) < 2:
        return {}
    first, _, third = statistics.quantiles(runs, n=4, method="inclusive")
    return {"q1": round(first, 4), "q3": round(third, 4)}


def verdict(found):
    """Whether a row keeps its bar, as a word; empty if it has none."""
    if found["bar"] is None or found["value"] is None:
        return ""
    good = found["value"] >= found["bar"] if found.get("at_least") else found["value"] <= found["bar"]
    return "ok" if good else "MISS"


def machine():
    """The machine that this runs on."""
    def first(path, word):
        with open(path) as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith(word)), "unknown")
    return {"cores": len(os.sched_getaffinity(0)), "mem": first("/proc/meminfo", "MemTotal"),
            "kernel": os.uname().release, "cpu": first("/proc/cpuinfo", "model name"),
            "filesystem": filesystem_of(TARGET), "proactive_reclaim": reclaims()}


def reclaims():
    """Whether the kernel takes back pages that are not touched for a while although memory is free (DAMON)."""
    def says(path, word):
        try:
            with open(path) as f:
                return f.read().strip() == word
        except OSError:
            return False
    actions = glob.glob("/sys/kernel/mm/damon/admin/kdamonds/*/contexts/*/schemes/*/action")
    running = [says(path.split("/contexts/")[0] + "/state", "on") for path in actions if says(path, "pageout")]
    return any(running) or says("/sys/module/damon_reclaim/parameters/enabled", "Y")


def filesystem_of(path):
    """The type of the filesystem that holds `path`."""
    best, kind = "", "unknown"
    path = os.path.realpath(path)
    with open("/proc/self/mountinfo") as f:
        for line in f:
            words = line.split()
            place = words[4]
            inside = path == place or path.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, kind = place, words[words.index("-") + 1]
    return kind


def print_table(rows, notes, columns=()):
    """Prints the table; `columns` are further ones: (title, width, function that gives a row's text)."""
    wide = max(len(found["name"]) for found in rows)
    more = " ".join(f"{title:>{width}}" for title, width, _ in columns)
    print(f"\n{'row':{wide}} {'value':>10} {'bar':>8}      {'unit':6} {more}  runs")
    for found in rows:
        value, bar = found["value"], found["bar"]
        shown = "-" if value is None else f"{value:,.3f}"
        limit = "" if bar is None else f"{'>=' if found.get('at_least') else '<='}{bar}"
        cells = " ".join(f"{text(found):>{width}}" for _, width, text in columns)
        note = f"  ({found['note']})" if "note" in found else ""
        print(f"{found['name']:{wide}} {shown:>10} {limit:>8} {verdict(found):4} {found['unit']:6} {cells}"
              f"  {' '.join(f'{v:.3f}' for v in found['runs'][:9])}{note}")
    for note in notes:
        print(f"note: {note}")


def merged(before, rows):
    """The rows of before, with those that were measured again in their places, and new ones at the end."""
    found = {row["name"]: row for row in rows if row["value"] is not None}
    return [found.pop(row["name"], row) for row in before] + list(found.values())


def publish(bench, rows, notes, quiet, columns=(), keep=True, merge=False):
    """Prints the table, writes benches/results/BENCH.json (with `keep`), and prints its content as the last line.

    With `merge`, rows of that file which were not measured stay in it.
    """
    path = os.path.join(TOP, "benches", "results", f"{bench}.json")
    if keep and merge and os.path.exists(path):
        with open(path) as f:
            rows = merged(json.load(f)["rows"], rows)
    result = json.dumps({"bench": bench, "machine": machine(), "rows": rows, "notes": notes})
    if keep:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(result + "\n")
    if not quiet:
        print_table(rows, notes, columns)
    print(result)
