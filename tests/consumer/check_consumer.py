#!/usr/bin/env python3
"""Build tests/consumer/program in one documented way, run it, and see that no way of building loses CUDA (BR-094).

  check_consumer.py WAY --source DIR --build DIR --libtorch DIR --fake-nvml FILE [--gpu]

  WAY     install, or one of the ways below; install comes first and is what the others use
  --gpu   this machine has a usable GPU: the program has to train on it

The commands and CMake files are taken from docs/use-from-your-program.md (blocks ```sh NAME and ```cmake NAME) and run as
they stand there, in a folder below DIR/consumer. Exits 1 with the reason when something differs from what is expected.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# The blocks of each way, each with whether the program that it leaves behind has a run path.
WAYS = {"cmake": [("cmake", True)], "pkg-config": [("pkg-config", True)], "lto": [("lto", True)],
        "g++": [("g++", True), ("no-rpath", False)],
        "add_subdirectory": [("cmake", True)], "shared": [("cmake", True), ("shared-pkg-config", True)]}
GPU = "NVIDIA T4/7.5/GPU-a/15360/0"


class Failure(Exception):
    """What was expected and what came instead."""


def expect(condition, expected, got):
    """Raise Failure with both sides unless `condition`."""
    if not condition:
        raise Failure(f"expected {expected}, got:\n{got}")


def run(command, folder, variables, exit_code=0):
    """Run a command line or a list of words and return (stdout, stderr)."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    words = ["bash", "-euc", command] if isinstance(command, str) else command
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    expect(done.returncode == exit_code, f"exit code {exit_code} of\n  {command}",
           f"{done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


class Consumer:
    """One way of building the program, in a folder of its own."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.build / "consumer" / arguments.way
        self.program_source = arguments.source / "tests/consumer/program"
        page = (arguments.source / "docs/use-from-your-program.md").read_text()
        self.blocks = dict(re.findall(r"^```(?:sh|cmake) (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
        prefix = "shared-prefix" if arguments.way == "shared" else "prefix"
        self.variables = {"PREFIX": str(arguments.build / "consumer" / prefix), "LIBTORCH": str(arguments.libtorch),
                          "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count())),
                          "LD_LIBRARY_PATH": None, "CUDA_VISIBLE_DEVICES": None, "PKG_CONFIG_PATH": None}
        self.no_gpu = {"LOCKSTEP_NVML_LIBRARY": "/no/such/library.so"}
        self.one_gpu = {} if arguments.gpu else {"LOCKSTEP_NVML_LIBRARY": str(arguments.fake_nvml), "FAKE_NVML_GPUS": GPU}
        self.cuda_library = arguments.libtorch / "lib/libtorch_cuda.so"

    def install(self, block, build):
        """Run the commands that install, but those that build what is built already; then move the whole."""
        prefix = Path(self.variables["PREFIX"])
        made = prefix.with_name(f"{prefix.name}-before-the-move")
        for folder in (prefix, made):
            shutil.rmtree(folder, ignore_errors=True)
        command = self.blocks[block]
        if block == "install":
            command = "\n".join(line for line in command.splitlines() if line.startswith("cmake --install"))
        command = command.replace("build/release", str(build)).replace("build/shared", str(build))
        run(command, self.arguments.source, {**self.variables, "PREFIX": str(made)})
        made.rename(prefix)
        library = "liblockstep.so" if block == "shared" else "liblockstep.a"
        for name in ("bin/lockstep", f"lib/{library}", "include/lockstep/lockstep.h", "share/man/man1/lockstep.1",
                     "share/bash-completion/completions/lockstep", "lib/cmake/lockstep/lockstepConfig.cmake"):
            expect((prefix / name).stat().st_size > 0, f"a file {prefix / name}", "an empty one")
        out, _ = run([prefix / "bin/lockstep-worker", "probe"], prefix, {**self.variables, **self.no_gpu})
        expect('"torch"' in out, "an answer of the installed worker", out)

    def prepare(self):
        """Make the user's project: the program, and the CMakeLists.txt of the documentation."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.program_source, self.folder)
        lists = self.folder / "CMakeLists.txt"
        expect(lists.read_text() == self.blocks["find_package"], "the block find_package", lists.read_text())
        if self.arguments.way == "add_subdirectory":
            lists.write_text(self.blocks["add_subdirectory"])
            (self.folder / "lockstep").symlink_to(self.arguments.source)

    def check_linked(self, program, has_run_path):
        """Nothing of CUDA is linked, so nothing can be dropped; the run path is there or not, as intended."""
        dynamic, _ = run(["readelf", "-d", program], self.folder, self.variables)
        expect("libtorch_cpu.so" in dynamic and "libtorch_cuda.so" not in dynamic, "libtorch_cpu linked alone", dynamic)
        expect(("PATH)" in dynamic) == has_run_path, f"{'a' if has_run_path else 'no'} run path", dynamic)
        is_shared = self.arguments.way == "shared"
        expect(("liblockstep.so" in dynamic) == is_shared, f"liblockstep {'shared' if is_shared else 'static'}", dynamic)

    def check_runs(self, program, variables):
        """Run the program with and without a GPU to be seen, and look at what was loaded."""
        has_cuda = self.cuda_library.exists()
        out, _ = run([program], self.folder, {**variables, **self.no_gpu})
        expect("steps 64 accuracy" in out and "device cpu" in out, "a trained model", out)
        expect("libtorch_cuda none" in out, "no CUDA library in a program for the CPU", out)
        out, _ = run([program, "--nproc", "2"], self.folder, {**variables, **self.no_gpu})
        expect("steps 32 accuracy" in out, "a trained model on two ranks", out)

        out, err = run([program], self.folder, {**variables, **self.one_gpu})
        expect(f"libtorch_cuda {self.cuda_library if has_cuda else 'none'}\n" in out, "LibTorch's CUDA library", out)
        if self.arguments.gpu:
            expect("device cuda:0" in out and "is_available yes" in out, "training on the GPU", out + err)
            run([program, "--device", "cuda"], self.folder, {**variables, **self.one_gpu})
            return
        reason = "CUDA finds no usable GPU" if has_cuda else "built for the CPU only"
        # An empty list hides a real GPU from CUDA, while the stand-in for the driver shows one.
        expect(f"warning: this machine has a GPU, but the CPU is used: {reason}" in " ".join(err.split()) or
               "device cuda" in out, f"a warning '{reason}'", err)
        _, err = run([program, "--device", "cuda"], self.folder, {**variables, "CUDA_VISIBLE_DEVICES": ""}, exit_code=2)
        expect(f"device cuda: {'CUDA finds no usable GPU' if has_cuda else reason}" in err, f"'{reason}'", err)

    def check_early_question(self, program):
        """A program that asks LibTorch about CUDA before it is loaded is told so, and how to do it."""
        if not self.cuda_library.exists():
            return
        warning = "the CPU is used: LibTorch was asked about CUDA before libtorch_cuda.so was loaded"
        for argument, is_warned in (("ask-first", True), ("load-first", False)):
            _, err = run([program, argument], self.folder, {**self.variables, **self.one_gpu})
            expect((warning in " ".join(err.split())) == is_warned,
                   f"{argument}: {'a' if is_warned else 'no'} warning '{warning}'", err)

    def check(self):
        """Build and run the program in every block of this way."""
        way = self.arguments.way
        if way == "shared":
            self.install("shared", self.arguments.build / "consumer/shared-build")
        self.prepare()
        for block, has_run_path in WAYS[way]:
            run(self.blocks[block], self.folder, {**self.variables, **self.no_gpu})
            program = self.folder / ("build/consumer" if block == "cmake" else "consumer")
            self.check_linked(program, has_run_path)
            libraries = None if has_run_path else str(self.arguments.libtorch / "lib")
            self.check_runs(program, {**self.variables, "LD_LIBRARY_PATH": libraries})
            if block == "cmake":
                self.check_early_question(program)
            if not has_run_path:
                run([program], self.folder, {**self.variables, **self.no_gpu}, exit_code=127)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["install", *WAYS])
    for name in ("--source", "--build", "--libtorch", "--fake-nvml"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--gpu", action="store_true")
    consumer = Consumer(parser.parse_args())
    try:
        if consumer.arguments.way == "install":
            consumer.install("install", consumer.arguments.build)
        else:
            consumer.check()
    except (Failure, OSError, KeyError) as error:
        print(f"check_consumer: {consumer.arguments.way}: {error}", file=sys.stderr)
        return 1
    print(f"check_consumer: {consumer.arguments.way}: as documented")
    return 0


if __name__ == "__main__":
    sys.exit(main())
