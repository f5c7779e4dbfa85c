import unittest

from tool_test import ToolTest


class CheckFiles(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("src/lockstep/base/text.h", "#pragma once\n")
        self.write("src/lockstep/base/text.cpp", '#include "lockstep/base/text.h"\n')
        self.compile_commands("src/lockstep/base/text.cpp")

    def check(self, *arguments):
        return self.run_tool("check_files.py", "--build", self.root / "build", *arguments)

    def test_accepts_a_tidy_project(self):
        self.assertEqual(self.check(), 0, self.output)

    def test_finds_a_source_in_no_target(self):
        for name in ("src/lockstep/base/lost_test.cpp", "tests/dist/lost.cpp", "examples/010.cpp", "src/x/kernel.cu"):
            with self.subTest(name):
                self.write(name, "int x;\n")
                self.expect_violation(self.check(), f"{name}:1: is in no target")
                (self.root / name).unlink()

    def test_a_source_of_a_folder_that_is_not_built_is_not_expected(self):
        self.write("benchmarks/micro/all_reduce.cpp", "int x;\n")
        self.expect_violation(self.check(), "benchmarks/micro/all_reduce.cpp:1: is in no target")
        self.assertEqual(self.check("--without", "benchmarks"), 0, self.output)
        self.assertIn("not looked for in targets: benchmarks", self.output)

    def test_a_separate_project_names_its_sources_itself(self):
        self.write("tests/consumer/CMakeLists.txt", "project(consumer)\nadd_executable(consumer main.cpp)\n")
        self.write("tests/consumer/main.cpp", "int main() {}\n")
        self.assertEqual(self.check(), 0, self.output)
        self.write("tests/consumer/lost.cpp", "int x;\n")
        self.expect_violation(self.check(), "is in no target of tests/consumer/CMakeLists.txt")

    def test_finds_a_header_that_nobody_includes(self):
        self.write("src/lockstep/base/lost.h", "#pragma once\n")
        self.expect_violation(self.check(), "src/lockstep/base/lost.h:1: is included by no source")

    def test_follows_headers_through_headers(self):
        self.write("src/lockstep/base/text.h", '#pragma once\n#include "lockstep/base/deep.h"\n')
        self.write("src/lockstep/base/deep.h", "#pragma once\n")
        self.assertEqual(self.check(), 0, self.output)

    def test_two_headers_that_include_each_other_are_still_unused(self):
        self.write("src/lockstep/base/a.h", '#include "lockstep/base/b.h"\n')
        self.write("src/lockstep/base/b.h", '#include "lockstep/base/a.h"\n')
        self.assertEqual(self.check(), 1)
        self.assertIn("2 violation(s)", self.output)

    def test_finds_a_long_source(self):
        self.write("tools/long.py", "x = 1\n" * 500)
        self.assertEqual(self.check(), 0, self.output)
        self.write("tools/long.py", "x = 1\n" * 501)
        self.expect_violation(self.check(), "tools/long.py:501: has 501 lines")

    def test_finds_a_big_file(self):
        self.write("docs/picture.png", "x" * 1_000_001)
        self.expect_violation(self.check(), "docs/picture.png:1: has 1,000,001 bytes")

    def test_finds_marks_of_unfinished_work(self):
        for first, second in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")):
            with self.subTest(first + second):
                self.write("docs/note.md", f"fine\n{first}{second}: later\n")
                self.expect_violation(self.check(), f"docs/note.md:2: '{first}{second}'")

    def test_leaves_out_build_folders(self):
        self.write("build/generated.cpp", "int x;\n")
        self.write(".venv/lib/x.py", "x\n" * 9999)
        self.assertEqual(self.check(), 0, self.output)

    def test_refuses_a_folder_that_is_not_configured(self):
        (self.root / "build/compile_commands.json").unlink()
        self.assertEqual(self.check(), 2)


if __name__ == "__main__":
    unittest.main()
