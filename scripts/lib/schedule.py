"""Runs the jobs of a bench, the most important first, within a time.

A job has a name, may occur again, and gives a Run.  A job that failed is noted and not tried again.  A job is left
out if it would end too late, judged by the last duration of its name.
"""

from driver import FAILURES, stopwatch
from mounts import TARGET, say

LIMIT = 12.5 * 60            # seconds: without --full, no job begins that would end later
FIRST = 20                   # seconds that a job is expected to take that has not run before


class Schedule:
    """The runs by name, and what is to be said about them."""

    def __init__(self, full, enough):
        """`enough`: the number of runs of a name after which left-out further runs do not matter."""
        self.full, self.enough = full, enough
        self.runs, self.took, self.notes = {}, {}, []
        self.failed = set()
        self.elapsed = stopwatch()

    def get(self, name):
        """The runs of a job."""
        return self.runs.get(name, [])

    def run(self, plan):
        """Runs the jobs of `plan`: (name, what to call). Returns whether none failed."""
        left = set()
        for name, job in plan:
            if name in self.failed:
                continue
            if not self.full and self.elapsed() + self.took.get(name, FIRST) > LIMIT:
                if len(self.get(name)) < self.enough:
                    left.add(name)
                continue
            began = self.elapsed()
            run = self.attempt(name, job)
            if run:
                self.took[name] = self.elapsed() - began
                self.runs.setdefault(name, []).append(run)
                say(f"{self.elapsed():5.0f} s  {name:18} " + " ".join(f"{e['seconds']:.2f}" for e in run.epochs))
        if left:
            self.notes.append(f"left out for lack of time: {', '.join(sorted(left))}")
        return not self.failed

    def attempt(self, name, job):
        """The result of `job`, or None if it failed."""
        try:
            return job()
        except FAILURES as e:
            self.failed.add(name)
            self.notes.append(f"{name} failed: {e}".replace(TARGET, "target"))
            say(f"{self.elapsed():5.0f} s  {name:18} FAILED: {e}")
            return None
