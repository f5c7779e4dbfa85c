"""scripts/setup.sh, run for show (--dry-run) with stand-ins for the system's programs in front of the PATH."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "scripts/setup.sh"


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "scripts").mkdir()
        (self.root / "bin").mkdir()
        shutil.copy(SETUP, self.root / "scripts/setup.sh")
        self.driver = self.root / "driver"
        self.program("dpkg-query", "echo installed")
        self.program("df", "echo header; echo disk 1 1 99000000 1% /")
        self.program("nvidia-smi", "exit 9")

    def program(self, name, script):
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def setup_script(self, *arguments, **variables):
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "LOCKSTEP_DRIVER_FILE": str(self.driver), **variables}
        done = subprocess.run([self.root / "scripts/setup.sh", *arguments], env=environment, capture_output=True,
                              text=True, check=False)
        self.output = done.stdout + done.stderr
        return done.returncode

    def test_without_a_driver_the_newest_for_the_cpu(self):
        self.assertEqual(self.setup_script("--dry-run"), 0, self.output)
        self.assertIn("LibTorch: 2.11.0 (no NVIDIA driver was found", self.output)
        self.assertIn("nothing was changed", self.output)
        self.assertFalse((self.root / ".venv").exists())

    def test_the_driver_decides(self):
        for version, wanted in (("580.65.06", "2.11.0 (driver 580.65.06 serves CUDA 13)"), ("610.1", "2.11.0"),
                                ("535.183.01", "2.10.0 (driver 535.183.01 is older than 580"), ("579.99", "2.10.0")):
            for kind in ("x86_64 Kernel Module", "Open Kernel Module for x86_64"):
                with self.subTest(version=version, kind=kind):
                    self.driver.write_text(f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build\nGCC 12.2.0\n")
                    self.assertEqual(self.setup_script("--dry-run"), 0, self.output)
                    self.assertIn(f"LibTorch: {wanted}", self.output)

    def test_without_proc_nvidia_smi_tells_the_driver(self):
        self.program("nvidia-smi", "echo 550.54.15; echo 550.54.15")
        self.setup_script("--dry-run")
        self.assertIn("LibTorch: 2.10.0 (driver 550.54.15", self.output)

    def test_a_message_instead_of_a_driver_version_is_no_driver(self):
        self.program("nvidia-smi", "echo Failed to initialize NVML: Driver/library version mismatch")
        self.assertEqual(self.setup_script("--dry-run"), 0, self.output)
        self.assertIn("no NVIDIA driver was found", self.output)

    def test_refuses_a_full_disk_before_it_downloads(self):
        self.program("df", "echo header; echo disk 1 1 11900000 1% /")
        self.assertEqual(self.setup_script(), 2, self.output)
        self.assertIn("only 11 GB of disk are free here, 12 GB are needed", self.output)
        self.assertFalse((self.root / ".venv").exists())

    def test_a_given_libtorch_needs_no_wheel(self):
        self.program("df", "echo header; echo disk 1 1 1 1% /")
        self.assertEqual(self.setup_script(LIBTORCH=str(self.root)), 2)
        self.assertIn("holds no lib/libtorch_cpu.so", self.output)
        (self.root / "lib").mkdir()
        (self.root / "lib/libtorch_cpu.so").touch()
        self.assertEqual(self.setup_script(LIBTORCH=str(self.root)), 0, self.output)

    def test_without_rights_it_says_what_to_install(self):
        for name in ("bash", "dirname", "sed", "cat", "grep", "awk"):
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        self.program("dpkg-query", 'case "$*" in *ccache*) exit 1;; *) echo installed;; esac')
        self.program("id", "echo 1000")
        self.assertEqual(self.setup_script(PATH=f"{self.root}/bin"), 2, self.output)
        self.assertIn("apt-get install --no-install-recommends ccache\n", self.output)

    def test_as_root_it_installs_what_is_missing_and_only_that(self):
        self.program("dpkg-query", 'case "$*" in *ccache*|*zlib*) exit 1;; *) echo installed;; esac')
        self.program("id", "echo 0")
        self.program("apt-get", f'echo "$@" >> {self.root}/apt.log')
        self.assertEqual(self.setup_script(LIBTORCH="/nowhere"), 2)
        calls = (self.root / "apt.log").read_text().splitlines()
        self.assertTrue(calls[0].endswith(" update"), calls)
        self.assertTrue(calls[1].endswith("install -y --no-install-recommends ccache zlib1g-dev"), calls)

    def test_a_user_takes_sudo(self):
        self.program("dpkg-query", 'case "$*" in *ccache*) exit 1;; *) echo installed;; esac')
        self.program("id", "echo 1000")
        self.program("sudo", f'echo "$@" >> {self.root}/sudo.log')
        self.setup_script(LIBTORCH="/nowhere")
        self.assertIn("apt-get", (self.root / "sudo.log").read_text())

    def test_elsewhere_it_names_the_packages(self):
        (self.root / "bin/dpkg-query").unlink()
        for name in ("bash", "dirname", "sed"):
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        self.assertEqual(self.setup_script(PATH=f"{self.root}/bin"), 2, self.output)
        self.assertIn("neither Debian nor Ubuntu", self.output)

    def test_unknown_arguments_are_refused(self):
        self.assertEqual(self.setup_script("--force"), 2)
        self.assertIn("unknown argument '--force'", self.output)


if __name__ == "__main__":
    unittest.main()
