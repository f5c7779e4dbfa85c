#!/usr/bin/env python3
"""Find files that nobody builds, files that are too long or too big, and marks of unfinished work.

  tools/check_files.py --build DIR [--root DIR] [--without FOLDER ...]

  --build DIR       a configured build folder: its compile_commands.json says what is in a target
  --without FOLDER  this folder is not part of that build (an option is off): do not expect its sources there

Checks: every .cpp and .cu under src, tests, examples and benchmarks is compiled (or, below a CMakeLists.txt with a
project() of its own, named there); every header is reached from one that is; no source is longer than 500 lines; no
file is larger than 1 MB; no mark of unfinished work. Prints "file:line: what is wrong" and exits 1; exits 2 when
there is no compile_commands.json.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

BUILT_FOLDERS = ("src", "tests", "examples", "benchmarks")
COMPILED = {".cpp", ".cu"}
HEADERS = {".h", ".cuh"}
TEXT = COMPILED | HEADERS | {".py", ".sh", ".cmake", ".txt", ".md", ".json", ".toml", ".yml"}
LIMITED = COMPILED | HEADERS | {".py", ".sh", ".cmake"}
MAX_LINES = 500
MAX_BYTES = 1_000_000
SKIPPED = {".git", "build", ".venv", "runs", "__pycache__"}
# Spelled in two halves so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))) + r")\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def project_files(root):
    """Return every file of the project, ignored ones left out, relative to `root`."""
    listing = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=False) if (root / ".git").exists() else None
    if listing is not None and listing.returncode == 0:
        names = [Path(name) for name in listing.stdout.decode().split("\0") if name]
    else:
        names = [path.relative_to(root) for path in root.rglob("*")]
    return sorted(name for name in names if (root / name).is_file() and not SKIPPED & set(name.parts))


def compiled_files(build):
    """Return the sources in a target of `build`, as absolute resolved paths."""
    entries = json.loads((build / "compile_commands.json").read_text())
    return {(Path(entry["directory"]) / entry["file"]).resolve() for entry in entries}


def own_project(root, name):
    """Return the CMakeLists.txt of the separate project that holds `name`, or None."""
    for folder in name.parents:
        lists = root / folder / "CMakeLists.txt"
        if folder != Path(".") and lists.exists() and re.search(r"^\s*project\(", lists.read_text(), re.MULTILINE):
            return lists
    return None


def find_unbuilt(root, files, compiled):
    """Yield (file, line, message) for sources in no target and for headers that no compiled source reaches."""
    reached, pending = set(), []
    headers = {name for name in files if name.suffix in HEADERS}
    for name in files:
        if name.suffix not in COMPILED:
            continue
        lists = own_project(root, name)
        if (root / name).resolve() in compiled or (lists and name.name in lists.read_text()):
            pending.append(name)
        else:
            yield name, 1, f"is in no target{f' of {lists.relative_to(root)}' if lists else ''}"
    while pending:
        name = pending.pop()
        for target in INCLUDE.findall((root / name).read_text(errors="replace")):
            for place in (name.parent / target, Path("src") / target, Path("tests") / target):
                if place in headers and place not in reached:
                    reached.add(place)
                    pending.append(place)
    for name in sorted(headers - reached):
        if not own_project(root, name):
            yield name, 1, "is included by no source that is compiled"


def find_oversized(root, files):
    """Yield (file, line, message) for long sources and big files."""
    for name in files:
        size = (root / name).stat().st_size
        if size > MAX_BYTES:
            yield name, 1, f"has {size:,} bytes, at most {MAX_BYTES:,} are allowed"
        elif name.suffix in LIMITED:
            lines = len((root / name).read_text(errors="replace").splitlines())
            if lines > MAX_LINES:
                yield name, lines, f"has {lines} lines, at most {MAX_LINES} are allowed"


def find_unfinished(root, files):
    """Yield (file, line, message) for marks of unfinished work."""
    for name in files:
        if name.suffix not in TEXT:
            continue
        for number, line in enumerate((root / name).read_text(errors="replace").splitlines(), 1):
            if found := UNFINISHED.search(line):
                yield name, number, f"'{found.group()}': finish it or file an issue"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--without", action="append", default=[], metavar="FOLDER")
    args = parser.parse_args()
    root = args.root.resolve()
    if not (args.build / "compile_commands.json").exists():
        print(f"{args.build} holds no compile_commands.json: configure it first", file=sys.stderr)
        return 2
    files = project_files(root)
    expected = [name for name in files if name.parts[0] in BUILT_FOLDERS and
                not any(name.is_relative_to(folder) for folder in args.without)]
    violations = [*find_unbuilt(root, expected, compiled_files(args.build)),
                  *find_oversized(root, files), *find_unfinished(root, files)]
    for name, line, message in violations:
        print(f"{name}:{line}: {message}")
    left_out = f" (not looked for in targets: {', '.join(args.without)})" if args.without else ""
    print(f"check_files: {len(files)} files, {len(violations)} violation(s){left_out}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
