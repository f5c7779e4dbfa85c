import unittest

from tool_test import TABLE, ToolTest


class CheckLayers(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("ARCHITECTURE.md", TABLE)
        self.write("src/lockstep/base/text.h", "#pragma once\n#include <string>\n")
        self.write("src/lockstep/host/cpus.cpp", '#include "lockstep/base/text.h"\n#include "lockstep/host/cpus.h"\n')
        self.write("src/lockstep/data/sampler.cpp", '#include <torch/torch.h>\n#include "lockstep/base/text.h"\n')
        self.write("src/lockstep/host/CMakeLists.txt", "lockstep_module(host DEPS base LINK dl)\n")
        self.write("src/lockstep/data/CMakeLists.txt", "lockstep_module(data TORCH DEPS base)\n")

    def check(self):
        return self.run_tool("check_layers.py")

    def test_accepts_what_the_table_allows(self):
        self.assertEqual(self.check(), 0, self.output)

    def test_finds_an_include_upwards(self):
        self.write("src/lockstep/base/text.h", '#pragma once\n\n#include "lockstep/host/cpus.h"\n')
        self.expect_violation(self.check(), 'src/lockstep/base/text.h:3: base may not include "lockstep/host/cpus.h"')

    def test_finds_it_in_tests_and_subfolders_and_with_angle_brackets(self):
        self.write("src/lockstep/base/detail/x_test.cpp", "# include <lockstep/host/cpus.h>\n")
        self.expect_violation(self.check(), "src/lockstep/base/detail/x_test.cpp:1: base may not include")

    def test_finds_torch_on_the_light_island(self):
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/util/Exception.h"):
            with self.subTest(header):
                self.write("src/lockstep/host/gpus.h", f"#include <{header}>\n")
                self.expect_violation(self.check(), f"host may not include LibTorch's <{header}>")

    def test_keeps_distributed_headers_in_one_folder(self):
        line = "#include <torch/csrc/distributed/c10d/TCPStore.hpp>\n"
        self.write("src/lockstep/c10d/store.cpp", line)
        self.assertEqual(self.check(), 0, self.output)
        self.write("src/lockstep/data/store.cpp", line)
        self.expect_violation(self.check(), "only c10d may include torch's distributed headers")

    def test_finds_a_folder_without_a_row(self):
        self.write("src/lockstep/utils/misc.h", "#pragma once\n")
        self.expect_violation(self.check(), "src/lockstep/utils:1: this folder has no row")

    def test_finds_an_include_of_a_folder_without_a_row(self):
        self.write("src/lockstep/host/gpus.h", '#include "lockstep/utils/misc.h"\n')
        self.expect_violation(self.check(), "is in no folder of the table")

    def test_finds_a_relative_include(self):
        self.write("src/lockstep/base/text.cpp", '#include "text.h"\n')
        self.expect_violation(self.check(), 'write "lockstep/base/text.h"')

    def test_finds_a_dependency_in_cmake_that_the_table_forbids(self):
        self.write("src/lockstep/host/CMakeLists.txt", "# data\n\nlockstep_module(host\n  DEPS base data\n  LINK dl)\n")
        self.expect_violation(self.check(), "src/lockstep/host/CMakeLists.txt:3: host may not depend on data")

    def test_finds_torch_in_cmake_that_the_table_forbids(self):
        self.write("src/lockstep/host/CMakeLists.txt", "lockstep_module(host TORCH DEPS base)\n")
        self.expect_violation(self.check(), "TORCH is given")

    def test_finds_a_module_with_another_name(self):
        self.write("src/lockstep/host/CMakeLists.txt", "lockstep_module(hosts DEPS base)\n")
        self.expect_violation(self.check(), "the module is called 'hosts'")

    def test_refuses_a_table_that_contradicts_itself(self):
        for row, message in (("| base | host | no | |", "cycle: base -> host -> base"),
                             ("| base | sky | no | |", "which has no row"),
                             ("| base | data | no | |", "is without torch but may include 'data'"),
                             ("| base | | maybe | |", "yes or no")):
            with self.subTest(row):
                self.write("ARCHITECTURE.md", TABLE.replace("| base | | no | the ground |", row))
                self.assertEqual(self.check(), 2, self.output)
                self.assertIn(message, self.output)

    def test_refuses_a_missing_table(self):
        self.write("ARCHITECTURE.md", "# nothing\n")
        self.assertEqual(self.check(), 2, self.output)


if __name__ == "__main__":
    unittest.main()
