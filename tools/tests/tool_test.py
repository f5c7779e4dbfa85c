"""A small project in a temporary folder, in which a tool is run as its users run it."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent

TABLE = """# Architecture

| folder | may include | torch | what it is |
|---|---|---|---|
| base | | no | the ground |
| host | base | no | the machine |
| data | base | yes | data sets |
| c10d | base | yes | torch's distributed headers |

Text after the table | with a bar.
"""


class ToolTest(unittest.TestCase):
    """Write files below self.root, run a tool on them, look at its exit code and lines."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def compile_commands(self, *names):
        self.write("build/compile_commands.json", json.dumps(
            [{"directory": str(self.root / "build"), "file": f"../{name}", "command": "c++"} for name in names]))

    def run_tool(self, tool, *arguments):
        done = subprocess.run([sys.executable, TOOLS / tool, "--root", self.root, *arguments],
                              capture_output=True, text=True, check=False)
        self.output = done.stdout + done.stderr
        return done.returncode

    def expect_violation(self, code, text):
        self.assertEqual(code, 1, self.output)
        self.assertIn(text, self.output)
        self.assertIn(" 1 violation(s)", self.output)
