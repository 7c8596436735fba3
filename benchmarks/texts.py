"""The text of every emitted file, before and after a change that is to leave it as it is.

    PYTHONPATH=src python3 benchmarks/texts.py write FOLDER [--variants] MODEL_OR_FOLDER ...
    python3 benchmarks/texts.py compare BEFORE AFTER [--show N]

`write` puts what each model becomes into FOLDER, one file a model, or with --variants one for each distinct file that tuning could
choose. Set FUSEWRIGHT_ZOO=small for the small sizes. `compare` names the files that differ and shows the first lines that do; exit
status 1 if there is one. Needs no GPU.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path


def models(places: list[Path]) -> Iterator[Path]:
    for place in places:
        found = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
        yield from (file for file in found if "get_init_inputs" in file.read_text())


def write(folder: Path, places: list[Path], every: bool) -> None:
    from fusewright.driver.all_variants import variants
    from fusewright.driver.pipeline import read_problem
    from fusewright.driver.tuning.choices import PREDICTED
    from fusewright.errors import Refused
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    folder.mkdir(parents=True, exist_ok=True)
    for file in models(places):
        try:
            front = read_problem(load_problem(file), Options(target="host"))
            if every:
                texts = {variant.name: variant.emitted.text for variant in variants(front)[0]}
            else:
                texts = {"predicted": front.finish(PREDICTED)[1].text}
        except Refused as refusal:
            texts = {"refused": f"{refusal}\n"}
        written: set[str] = set()
        for number, text in enumerate(text for text in texts.values() if text not in written and not written.add(text)):  # type: ignore[func-returns-value]
            name = f"{file.parent.name}-{file.stem}" + (f"-{number}" if every else "")
            (folder / f"{name}.txt").write_text(text)
        print(f"{file}: {len(written)}", flush=True)


def compare(before: Path, after: Path, shown: int) -> int:
    names = sorted({file.name for folder in (before, after) for file in folder.glob("*.txt")})
    differing = 0
    for name in names:
        sides = [(folder / name).read_text().splitlines() if (folder / name).exists() else [] for folder in (before, after)]
        if sides[0] != sides[1]:
            differing += 1
            lines = difflib.unified_diff(*sides, str(before / name), str(after / name), n=0, lineterm="")
            print("\n".join(itertools.islice(lines, shown)))
    print(f"{len(names)} files, {differing} differ")
    return 1 if differing or not names else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("places", nargs="+", type=Path)
    writing.add_argument("--variants", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--show", type=int, default=12, metavar="N")
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after, given.show)
    write(given.folder, given.places, given.variants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
