// BR-041: rank 0 leaves first, and the others still read the store that meeting began at. `lockstep run` serves it
// itself, so nobody's end takes it away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

TEST(Store, BR041i_TheStoreOutlivesRankZeroEveryTime) {
  const std::string rank = text(std::getenv("LOCKSTEP_BUILD_DIR"), "/tests/e2e/store_rank");
  for (int repeat = 0; repeat < STORE_REPEATS; ++repeat) {
    Command command({"run", "--nproc", "2", "--", rank, "60"});
    ASSERT_EQ(command.wait(), 0) << "repeat " << repeat << ": " << command.err();
    EXPECT_THAT(command.out(), HasSubstr("[rank 1] read 'from rank 0'\n")) << repeat;
    EXPECT_TRUE(command.living().empty()) << repeat;
  }
}

}  // namespace
}  // namespace lockstep::e2e
