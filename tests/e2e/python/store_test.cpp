// BR-041 with Python's own ranks under `lockstep run`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

TEST(PythonStore, BR041i_RankZeroEndsAtOnceAndRankOneStillReadsFiveSecondsLater) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  ASSERT_TRUE(python != nullptr && *python != '\0') << "LOCKSTEP_PYTHON is empty: this test needs a Python with torch";
  const std::string script = text(std::getenv("LOCKSTEP_SOURCE_DIR"), "/tests/e2e/python/store_rank.py");
  const auto words = [&](const char* leave) {
    return std::vector<std::string>{"run", "--nproc", "2", "--", python, script, "5", leave};
  };
  Command with_leave(words("destroy")), without(words("exit"));
  for (auto* command : {&with_leave, &without}) {
    EXPECT_EQ(command->wait(), 0) << command->err();
    EXPECT_THAT(command->out(), HasSubstr("[rank 1] read 'from rank 0' and left\n")) << command->err();
    EXPECT_TRUE(command->living().empty());
  }
}

}  // namespace
}  // namespace lockstep::e2e
