// Replays every training run that the Python referee (tests/numerics/python/numerics.py) lists, under every strategy
// that can run it; ranks are real processes over shared memory, and threads for dp. The table of the differences is
// printed at the end; docs/reference/parity.md holds a copy.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include <ATen/Parallel.h>

#include "dist/run_ranks.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "numerics/replay.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct CaseParameter {
  std::string name;
  int world = 1;
};

const std::vector<CaseParameter> kCases{{"cnn-single", 1},
                                        {"mlp-single", 1},
                                        {"bn-single", 1},
                                        {"branch-single", 1},
                                        {"tied-single", 1},
                                        {"cnn-ddp2", 2},
                                        {"cnn-ddp4", 4},
                                        {"mlp-ddp2", 2},
                                        {"mlp-ddp4", 4},
                                        {"bn-ddp2", 2},
                                        {"bn-ddp4", 4},
                                        {"branch-ddp2", 2},
                                        {"branch-ddp4", 4},
                                        {"tied-ddp2", 2},
                                        {"tied-ddp4", 4},
                                        {"mlp-ddp2-accum4", 2},
                                        {"cnn-ddp4-accum2", 4},
                                        {"tied-ddp2-accum2", 2},
                                        {"bn-sync2", 2},
                                        {"bn-sync4", 4},
                                        {"bn-sync2-uneven", 2},
                                        {"cnn-ddp2-clip", 2},
                                        {"mlp-ddp4-accum2-clip", 4},
                                        {"mlp-ddp2-momentum", 2},
                                        {"mlp-ddp2-dampening", 2},
                                        {"mlp-ddp2-nesterov", 2},
                                        {"mlp-ddp2-adam", 2},
                                        {"mlp-ddp2-adamw", 2},
                                        {"mlp-ddp2-amsgrad", 2},
                                        {"branch-ddp2-adamw", 2},
                                        {"branch-ddp2-momentum", 2},
                                        {"cnn-ddp4-warmup", 4},
                                        {"mlp-ddp2-fp16", 2},
                                        {"mlp-ddp2-bf16", 2},
                                        {"cnn-ddp4-fp16", 4},
                                        {"cnn-ddp4-bf16", 4},
                                        {"mlp-ddp2-sampler-pad", 2},
                                        {"mlp-ddp2-sampler-drop", 2},
                                        {"mlp-ddp4-sampler-pad", 4},
                                        {"mlp-ddp4-sampler-drop", 4},
                                        {"mlp-ddp2-join", 2},
                                        {"mlp-ddp2-join-active", 2},
                                        {"mlp-ddp4-join", 4}};

const std::vector<std::string> kColumns{"single", "ddp", "ddp, plain", "dp", "zero1", "zero2"};

bool has_hook(const std::string& name) {
  return name.ends_with("fp16") || name.ends_with("bf16");
}

// A hook rounds: where our kernels differ from ATen in the last bit of fp32, a value may round to its other neighbour.
// Those cases are replayed with the operations that the referee used.
ReplayOptions options_of(const std::string& name, const std::string& column) {
  if (column == "ddp, plain") return {"ddp", false};
  return {column, !has_hook(name)};
}

// The strategies that can run a case. The hooks replace an all-reduce, which the sharded strategies do not make.
std::vector<std::string> columns_of(const CaseParameter& parameter) {
  if (parameter.world == 1) return {"single"};
  const bool has_kernels = parameter.name.starts_with("cnn") || parameter.name.starts_with("mlp");
  std::vector<std::string> columns{"ddp", "dp"};
  if (has_hook(parameter.name)) return columns;
  if (has_kernels) columns.push_back("ddp, plain");
  columns.insert(columns.end(), {"zero1", "zero2"});
  return columns;
}

// Differences found so far; a separate process each for the ranks, so they come back through files.
class Table : public ::testing::Environment {
 public:
  static std::map<std::string, std::map<std::string, double>>& rows() {
    static std::map<std::string, std::map<std::string, double>> all;
    return all;
  }
  void TearDown() override {
    if (lockstep::testing::is_rank_process() || rows().empty()) return;
    std::printf("| case |");
    for (const auto& column : kColumns) std::printf(" %s |", column.c_str());
    std::printf("\n|---|");
    for (std::size_t c = 0; c < kColumns.size(); ++c) std::printf("---|");
    for (const auto& [name, row] : rows()) {
      std::printf("\n| %s |", name.c_str());
      for (const auto& column : kColumns) {
        const auto found = row.find(column);
        if (found == row.end())
          std::printf(" |");
        else
          std::printf(" %.1e |", found->second);
      }
    }
    std::printf("\n");
  }
};
[[maybe_unused]] const auto* const kTable = ::testing::AddGlobalTestEnvironment(new Table);

class NumericsReplay : public ::testing::TestWithParam<CaseParameter> {
 protected:
  // All cases, as Python computes them on this machine now: last bits depend on the machine. Ranks use the caller's
  // folder.
  static fs::path case_folder(const std::string& name) {
    if (const char* given = std::getenv("LOCKSTEP_TEST_CASE_FOLDER")) return given;
    static const TemporaryDirectory folder("lockstep-numerics");
    static const bool is_written = write_cases(folder.path());
    if (!is_written) throw std::runtime_error("the referee failed; its words stand above");
    return folder.path() / name;
  }

  static bool write_cases(const fs::path& folder) {
    const std::string command = text("'", std::getenv("LOCKSTEP_PYTHON"), "' '", std::getenv("LOCKSTEP_SOURCE_DIR"),
                                     "/tests/numerics/python/numerics.py' write all '", folder.string(), "' >&2");
    return std::system(command.c_str()) == 0;
  }

  static double replay_in_threads(const fs::path& folder, const CaseParameter& parameter) {
    auto communicators = comm::make_local_communicators(parameter.world, {});
    std::vector<std::thread> threads;
    double difference = 0;
    for (auto& communicator : communicators) {
      threads.emplace_back([&, rank = communicator->rank()] {
        try {
          at::set_num_threads(1);  // as the referee and the ranks that are processes: sums in the same order
          const double mine = Replay(folder, options_of(parameter.name, "dp"), *communicator).run();
          if (rank == 0) difference = mine;
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return difference;
  }

  static void replay_in_processes(const fs::path& folder, const CaseParameter& parameter,
                                  const std::vector<std::string>& columns) {
    lockstep::testing::RunRanksOptions options;
    options.environment = {{"LOCKSTEP_TEST_CASE_FOLDER", folder.string()}, {"OMP_NUM_THREADS", "1"}};
    lockstep::testing::run_ranks(
        parameter.world,
        [&](lockstep::testing::RankContext& context) {
          for (const auto& column : columns) {
            if (column == "dp") continue;
            SCOPED_TRACE(column);
            const auto communicator =
                comm::make_shm_communicator(context.store, context.rank, context.world, {.name = column});
            const double difference = Replay(folder, options_of(parameter.name, column), *communicator).run();
            if (context.rank == 0) write_file_atomic(folder / column, text(difference));
          }
        },
        options);
  }
};

TEST_P(NumericsReplay, EqualsPython) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  ASSERT_TRUE(python != nullptr && *python != '\0')
      << "no Python with torch was found, which these tests compare with: run scripts/setup.sh, or scripts/test.sh "
         "--no-python-tests to leave them out";
  const auto& parameter = GetParam();
  const fs::path folder = case_folder(parameter.name);
  auto& row = Table::rows()[parameter.name];
  if (parameter.world == 1) {
    const auto communicator = comm::make_single_communicator();
    row["single"] = Replay(folder, {"single", true}, *communicator).run();
    Replay(folder, {"single", false}, *communicator).run();
    return;
  }
  const auto columns = columns_of(parameter);
  replay_in_processes(folder, parameter, columns);
  for (const auto& column : columns) {
    if (column != "dp" && fs::exists(folder / column)) row[column] = std::stod(read_file(folder / column));
  }
  row["dp"] = replay_in_threads(folder, parameter);
}

INSTANTIATE_TEST_SUITE_P(Cases, NumericsReplay, ::testing::ValuesIn(kCases), [](const auto& replay) {
  std::string name = replay.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep
