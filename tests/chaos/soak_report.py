"""What a soak came to: the verdict on each series, the books, and both in words."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.figures import percentile
from tests.chaos.soak_page import page
from tests.chaos.soak_series import Series, all_of, thinned
from tests.chaos.soak_verdict import WARM_UP, Verdict, Word, judged
from tests.chaos.soak_workload import KINDS

DOCS: Final = Path(__file__).parents[2] / "docs" / "operations"


def shape(seconds: Sequence[float]) -> list[float]:
    """Return how many there are, and what half, 95 and 99 percent and all of them stay below."""
    ranked = sorted(seconds)
    return [len(ranked), *(round(percentile(ranked, q) or 0.0, 6) for q in (50, 95, 99)), round(ranked[-1], 6)]


class Report:
    """The verdicts on a run."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.warm_up = found["plan"]["hours"] * 3600 * WARM_UP
        self.series = all_of(found)
        self.verdicts: list[tuple[Series, Verdict]] = [
            (one, verdict)
            for one in self.series
            if (verdict := judged(one.points, warm_up=self.warm_up, small=one.small)) is not None
        ]

    @property
    def faults(self) -> list[str]:
        """Return what is wrong with the books."""
        found = self.found
        if "books" not in found:
            return ["The run has not ended."]
        books, runs = found["books"], found["books"]["runs"]
        counts = {
            "lost": sum(books["lost"].values()),
            "ran once too often": books["doubled"],
            "broken actions of producers": books["broken"],
            "deadlocks": int(found["deadlocks"]),
            **{f"left: {name}": count for name, count in found["left"].items()},
            "archived but not once each": found["archived"] - self.successes,
            "counted as succeeded but not once each": found["counted"]["succeeded"] - self.successes,
            "dead letters but not once each": found["dead_letters"] - books["sent"].get("dead letter", 0),
            "superseded runs": found["counted"]["superseded"],
            "runs of no kind": sum(runs.values()) == 0,
            "exit codes": sum(map(abs, [found["exit_codes"]["producers"], *found["exit_codes"]["workers"]])),
        }
        return [f"{name}: {count}" for name, count in counts.items() if count]

    @property
    def successes(self) -> int:
        """Return how many jobs must have succeeded: those of tasks and handlers, not of streams, which have no rows."""
        sent = self.found["books"]["sent"]
        jobs = sum(
            sent.get(kind.name, 0) * kind.jobs for kind in KINDS if kind.name not in ("stream entry", "dead letter")
        )
        return jobs + sent.get("batch", 0)  # their ends

    @property
    def others_used(self) -> float | None:
        """Return which share of the processors others used meanwhile."""
        samples = self.found["samples"]
        if len(samples) < 2:
            return None
        first, last = samples[0], samples[-1]
        used, idle = (last["machine"][name] - first["machine"][name] for name in ("used", "idle"))
        names = first["processes"].keys() & last["processes"].keys()
        ours = last["server"]["cpu"] - first["server"]["cpu"]
        ours += sum(last["processes"][name]["cpu"] - first["processes"][name]["cpu"] for name in names)
        return float(max(0.0, used - ours) / max(used + idle, 1.0))

    def those(self, word: Word) -> list[tuple[Series, Verdict]]:
        """Return the judged series of a verdict."""
        return [(series, verdict) for series, verdict in self.verdicts if series.judged and verdict.word == word]

    @property
    def is_good(self) -> bool:
        """Return whether nothing was lost or doubled, and nothing grows."""
        return not self.faults and not self.those(Word.GROWING)

    def summary(self) -> dict[str, Any]:
        """Return all that is known but the samples, as plain values."""
        return {
            **{name: value for name, value in self.found.items() if name not in ("samples", "waits")},
            "faults": self.faults,
            "others_used": self.others_used,
            "series": [
                {"group": series.group, "name": series.name, "unit": series.unit, "judged": series.judged}
                | {name: getattr(verdict, name) for name in Verdict.__slots__}
                for series, verdict in self.verdicts
            ],
        }

    def text(self) -> str:
        """Return it for people."""
        lines = [f"{'':44} {'level':>12} {'in an hour':>12} {'%':>8}   verdict"]
        for series, verdict in self.verdicts:
            percent = "" if verdict.percent is None else f"{verdict.percent:+8.1f}"
            lines.append(
                f"{series.group + ': ' + series.name:60.60} {verdict.level:10.2f} {verdict.change:+10.2f} {series.unit:7}"
                f" {percent:>8}   {verdict.word if series.judged else '-'}"
            )
        lines += [f"FAULT {fault}" for fault in self.faults] or ["Nothing lost, nothing doubled, nothing left."]
        if "books" in self.found:
            lines.append(json.dumps(self.found["books"]))
        return "\n".join(lines)

    def write(self, out: Path) -> None:
        """Write samples and verdicts."""
        with gzip.open(out / "soak.json.gz", "wt") as file:
            json.dump(self.found, file)
        (out / "partial.json").unlink(missing_ok=True)
        (out / "verdicts.json").write_text(json.dumps(self.summary(), indent=1))

    def draw(self, out: Path, kinds: Sequence[str] = ("svg",)) -> None:
        """Draw the plots; without matplotlib there are none."""
        from tests.chaos import soak_plots

        soak_plots.draw(self.series, self.warm_up, out, kinds)

    def record(self, docs: Path = DOCS) -> None:
        """Write the run into the documentation: the plots, the series minute by minute, and the words."""
        folder = docs / "soak"
        folder.mkdir(parents=True, exist_ok=True)
        self.draw(folder)
        summary = self.summary()
        summary["statements"] = summary.get("statements", [])[:15]
        minutes = {f"{one.group}: {one.name}": thinned(one.points) for one in self.series if one.points}
        text = json.dumps({**summary, "minutes": minutes}, separators=(",", ":"))
        (folder / "record.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        (docs / "_soak.md").write_text(page(json.loads(text)))


def read(file: Path) -> dict[str, Any]:
    """Return what a run, or the record of one, has left."""
    with gzip.open(file, "rt") as opened:
        found: dict[str, Any] = json.load(opened)
        return found
