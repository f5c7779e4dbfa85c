#include "lockstep/launch/output.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

class Splitter : public ::testing::Test {
 protected:
  std::vector<std::string> lines_;
  LineSplitter splitter_;
  LineSplitter::Emit emit_ = [this](std::string_view line) { lines_.emplace_back(line); };
};

TEST_F(Splitter, LinesAcrossReads) {
  splitter_.feed("a\nb", emit_);
  splitter_.feed("c\n\n", emit_);
  splitter_.feed("d", emit_);
  EXPECT_EQ(lines_, (std::vector<std::string>{"a", "bc", ""}));
  splitter_.finish(emit_);
  splitter_.finish(emit_);
  EXPECT_EQ(lines_.back(), "d");
  EXPECT_EQ(lines_.size(), 4u);
}

TEST_F(Splitter, ALineOfAnyLengthIsHandedOnInBoundedPieces) {
  const std::string line(2 * LineSplitter::kMaxLineBytes + 5, 'x');
  for (std::size_t i = 0; i < line.size(); i += 1000) splitter_.feed(line.substr(i, 1000), emit_);
  splitter_.feed("\n", emit_);
  ASSERT_EQ(lines_.size(), 3u);
  EXPECT_EQ(lines_[2].size(), 5u);
  lines_.clear();
  splitter_.feed(line + "\n", emit_);
  ASSERT_EQ(lines_.size(), 3u);
  EXPECT_EQ(lines_[0].size(), LineSplitter::kMaxLineBytes);
}

TEST_F(Splitter, TheNewestDrawingOfAProgressBar) {
  EXPECT_FALSE(splitter_.take_redraw(emit_));
  splitter_.feed("waiting for input: ", emit_);
  EXPECT_FALSE(splitter_.take_redraw(emit_));
  splitter_.feed("\r10%\r20%", emit_);
  EXPECT_TRUE(splitter_.take_redraw(emit_));
  splitter_.feed("30%\r40%\r", emit_);
  EXPECT_TRUE(splitter_.take_redraw(emit_));
  EXPECT_EQ(lines_, (std::vector<std::string>{"20%", "40%"}));
}

}  // namespace
}  // namespace lockstep::launch
