// Initial values against Python's nn modules of the same LibTorch. Needs LOCKSTEP_PYTHON.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/models/model.h"

namespace lockstep::models {
namespace {

/// What initial_values.py writes: for each parameter "name [shape]\n" and its float32 values.
std::string python_parameters(const std::string& arguments) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  const char* source = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (python == nullptr || *python == '\0' || source == nullptr) {
    ADD_FAILURE() << "LOCKSTEP_PYTHON (a Python that has torch) and LOCKSTEP_SOURCE_DIR are not set, which ctest does; "
                     "leave this test out with scripts/test.sh --no-python-tests";
    return {};
  }
  const std::string script = std::string(source) + "/src/lockstep/models/python/initial_values.py";
  const std::string command = std::string("'") + python + "' '" + script + "' " + arguments;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 65536> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) out.append(buffer.data(), got);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return out;
}

/// The same of ours; draws with `seed`.
std::string our_parameters(std::uint64_t seed, const std::function<std::shared_ptr<Model>()>& make) {
  torch::manual_seed(seed);
  const auto model = make();
  std::string out;
  for (const auto& parameter : model->named_parameters()) {
    std::string line = parameter.key() + " [";
    for (const auto size : parameter.value().sizes()) line += (line.back() == '[' ? "" : ", ") + std::to_string(size);
    out += line + "]\n";
    out.append(static_cast<const char*>(parameter.value().const_data_ptr()), parameter.value().nbytes());
  }
  return out;
}

void expect_pythons(const std::string& name, std::uint64_t seed, const std::vector<std::int64_t>& sizes,
                    const std::function<std::shared_ptr<Model>()>& make) {
  std::vector<std::string> words{name, std::to_string(seed)};
  for (const auto size : sizes) words.push_back(std::to_string(size));
  const std::string arguments = join(words, " ");
  const std::string want = python_parameters(arguments);
  ASSERT_FALSE(want.empty());
  EXPECT_TRUE(our_parameters(seed, make) == want) << arguments;
}

TEST(InitialValues, EqualPythonsForTheSameSeed) {
  const auto compare = [](const char* name, std::uint64_t seed, const ModelShape& s) {
    expect_pythons(name, seed, {s.channels, s.height, s.width, s.classes}, [&] { return make_model(name, s); });
  };
  compare("cnn", 0, {3, 32, 32, 10});
  compare("cnn", 7, {1, 28, 28, 100});
  compare("mlp", 0, {1, 28, 28, 10});
  compare("mlp", 7, {3, 5, 4, 3});
  compare("resnet18", 0, {3, 32, 32, 10});
  compare("resnet18", 7, {3, 96, 96, 3});
  compare("resnet50", 1, {3, 32, 32, 10});
}

TEST(InitialValues, OfGpt2EqualPythonsForTheSameSeed) {
  const auto compare = [](std::uint64_t seed, const TokenShape& s) {
    expect_pythons("gpt2", seed, {s.vocabulary, s.positions, s.layers, s.heads, s.width},
                   [&] { return make_token_model("gpt2", s); });
  };
  compare(0, {.vocabulary = 100, .positions = 16, .layers = 2, .heads = 4, .width = 32});
  compare(7, {.vocabulary = 37, .positions = 9, .layers = 3, .heads = 3, .width = 15});
}

}  // namespace
}  // namespace lockstep::models
