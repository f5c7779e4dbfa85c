#!/usr/bin/env python3
"""Hold every include and every module's DEPS against the table of folders in ARCHITECTURE.md.

  tools/check_layers.py [--root DIR]

A folder of src/lockstep may include itself and the folders of its row; LibTorch's headers only where the table says
so; torch's distributed headers only in c10d. Prints one "file:line: what is wrong" for each violation and exits 1;
exits 2 when the table cannot be read.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
TORCH_DISTRIBUTED = "torch/csrc/distributed/"
DISTRIBUTED_FOLDER = "c10d"
SOURCES = {".cpp", ".h", ".cu", ".cuh"}


@dataclass
class Layer:
    """One row of the table: whom a folder may include, and whether it may know LibTorch."""

    may_include: set = field(default_factory=set)
    torch: bool = False
    line: int = 0


class TableError(Exception):
    """The table is missing or contradicts itself."""


def read_table(path):
    """Return {folder: Layer} from the Markdown table whose header starts with `| folder |`."""
    layers, in_table = {}, False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "folder":
            in_table = True
        elif in_table and not line.startswith("|"):
            break
        elif in_table and not set(cells[0]) <= set("-: "):
            if len(cells) < 3 or cells[2] not in ("yes", "no"):
                raise TableError(f"{path}:{number}: a row is '| folder | may include | yes or no | what it is |'")
            names = {name.strip() for name in cells[1].split(",")} - {""}
            if cells[0] in layers:
                raise TableError(f"{path}:{number}: a second row for '{cells[0]}'")
            layers[cells[0]] = Layer(names, cells[2] == "yes", number)
    if not layers:
        raise TableError(f"{path}: no table whose header starts with '| folder |'")
    for name, layer in layers.items():
        for other in layer.may_include:
            if other not in layers:
                raise TableError(f"{path}:{layer.line}: '{name}' may include '{other}', which has no row")
            if layers[other].torch and not layer.torch:
                raise TableError(f"{path}:{layer.line}: '{name}' is without torch but may include '{other}', which is not")
    check_order(path, layers)
    return layers


def check_order(path, layers):
    """Raise TableError when the table allows a cycle: then no order of layers exists."""
    done, open_names = set(), []

    def visit(name):
        if name in open_names:
            cycle = " -> ".join([*open_names[open_names.index(name):], name])
            raise TableError(f"{path}:{layers[name].line}: the table allows a cycle: {cycle}")
        if name in done:
            return
        open_names.append(name)
        for other in sorted(layers[name].may_include):
            visit(other)
        open_names.pop()
        done.add(name)

    for name in layers:
        visit(name)


def check_source(path, folder, layers):
    """Yield (line, message) for every include of `path` that its folder may not have."""
    layer = layers[folder]
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        quote, name = found.groups()
        if name.startswith("lockstep/"):
            other = name.split("/")[1] if name.count("/") > 1 else None
            if other is None or other not in layers:
                yield number, f'"{name}" is in no folder of the table in ARCHITECTURE.md'
            elif other != folder and other not in layer.may_include:
                yield number, f'{folder} may not include "{name}" (its row: {", ".join(sorted(layer.may_include)) or "nothing"})'
        elif name.startswith(TORCH):
            if not layer.torch:
                yield number, f"{folder} may not include LibTorch's <{name}>"
            elif name.startswith(TORCH_DISTRIBUTED) and folder != DISTRIBUTED_FOLDER:
                yield number, f"only {DISTRIBUTED_FOLDER} may include torch's distributed headers, not {folder}: <{name}>"
        elif quote == '"' and (path.parent / name).exists():
            yield number, f'write "lockstep/{folder}/{name}" instead of the relative "{name}"'


def check_cmake(path, folder, layers):
    """Yield (line, message) where lockstep_module() contradicts the table."""
    text = re.sub(r"#.*", "", path.read_text())
    for call in re.finditer(r"lockstep_module\(([^)]*)\)", text):
        line = text.count("\n", 0, call.start()) + 1
        words = call.group(1).split()
        if words[0] != folder:
            yield line, f"the module is called '{words[0]}' but its folder '{folder}'"
        if ("TORCH" in words) != layers[folder].torch:
            yield line, f"TORCH is {'given' if 'TORCH' in words else 'missing'}, the table says the opposite for {folder}"
        keywords = {"TORCH", "DEPS", "LINK", "LINK_PUBLIC"}
        section = None
        for word in words[1:]:
            section = word if word in keywords else section
            if word not in keywords and section == "DEPS" and word not in layers[folder].may_include:
                yield line, f"{folder} may not depend on {word}"


def check(root):
    """Return all violations as lines of text."""
    layers = read_table(root / "ARCHITECTURE.md")
    violations = []
    for folder in sorted(entry for entry in (root / "src/lockstep").iterdir() if entry.is_dir()):
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in SOURCES or path.name == "CMakeLists.txt"]
        if files and folder.name not in layers:
            violations.append(f"{folder.relative_to(root)}:1: this folder has no row in ARCHITECTURE.md")
            continue
        for path in files:
            checker = check_source if path.suffix in SOURCES else check_cmake
            violations += [f"{path.relative_to(root)}:{line}: {message}"
                           for line, message in checker(path, folder.name, layers)]
    return violations


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    try:
        violations = check(parser.parse_args().root)
    except (TableError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join([*violations, f"check_layers: {len(violations)} violation(s)"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
