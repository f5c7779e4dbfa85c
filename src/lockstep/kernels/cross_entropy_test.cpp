#include "lockstep/kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::kernels {
namespace {

template <typename T>
struct Case {
  std::vector<T> logits;
  std::vector<std::int64_t> targets;
  Case(std::int64_t samples, std::int64_t classes) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal(0, 3);
    for (std::int64_t i = 0; i < samples * classes; ++i) logits.push_back(static_cast<T>(normal(random)));
    for (std::int64_t n = 0; n < samples; ++n) {
      targets.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(classes)));
    }
  }
};

template <typename T>
class CrossEntropyTyped : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(CrossEntropyTyped, ElementTypes);

TYPED_TEST(CrossEntropyTyped, LossAndGradientEqualTheDefinition) {
  const double tolerance = sizeof(TypeParam) == 4 ? 1e-6 : 1e-14;
  for (const std::int64_t samples : {0, 1, 2, 32, 100}) {
    for (const std::int64_t classes : {1, 2, 10, 17, 1000}) {
      const Case<TypeParam> in(samples, classes);
      const double scale = samples == 0 ? 1 : 1.0 / double(samples);
      std::vector<TypeParam> dlogits(in.logits.size(), std::numeric_limits<TypeParam>::quiet_NaN());
      const auto got = cross_entropy(samples, classes, in.logits.data(), in.targets.data(), scale, dlogits.data());
      EXPECT_EQ(got.bad_sample, -1);
      long double loss = 0;
      for (std::int64_t n = 0; n < samples; ++n) {
        const TypeParam* row = in.logits.data() + n * classes;
        long double sum = 0;
        for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(static_cast<long double>(row[k]));
        const std::int64_t target = in.targets[static_cast<std::size_t>(n)];
        loss += std::log(sum) - static_cast<long double>(row[target]);
        for (std::int64_t k = 0; k < classes; ++k) {
          const long double p = std::exp(static_cast<long double>(row[k])) / sum;
          const double want = scale * double(p - (k == target ? 1 : 0));
          ASSERT_NEAR(double(dlogits[static_cast<std::size_t>(n * classes + k)]), want, tolerance * scale);
        }
      }
      EXPECT_NEAR(got.loss_sum, double(loss), tolerance * double(samples * 10 + 1));
      const auto loss_only =
          cross_entropy<TypeParam>(samples, classes, in.logits.data(), in.targets.data(), scale, nullptr);
      EXPECT_EQ(loss_only.loss_sum, got.loss_sum);
    }
  }
}

TYPED_TEST(CrossEntropyTyped, LargeLogitsDoNotOverflow) {
  const std::vector<TypeParam> logits{TypeParam(1e4), TypeParam(-1e4), TypeParam(0)};
  const std::int64_t target = 0;
  std::vector<TypeParam> dlogits(3);
  EXPECT_EQ(cross_entropy(1, 3, logits.data(), &target, 1, dlogits.data()).loss_sum, 0);
  EXPECT_EQ(dlogits, (std::vector<TypeParam>{0, 0, 0}));
}

TYPED_TEST(CrossEntropyTyped, NaNShowsInTheLoss) {
  std::vector<TypeParam> logits{1, std::numeric_limits<TypeParam>::quiet_NaN(), 3};
  const std::int64_t target = 2;
  EXPECT_TRUE(std::isnan(cross_entropy<TypeParam>(1, 3, logits.data(), &target, 1, nullptr).loss_sum));
}

TYPED_TEST(CrossEntropyTyped, TheFirstLabelOutOfRangeIsNamedAndNothingWritten) {
  const std::vector<TypeParam> logits(20, TypeParam(1));
  std::vector<TypeParam> dlogits(20, TypeParam(7));
  for (const std::int64_t label : {std::int64_t{10}, std::int64_t{-1}, std::int64_t{-100}}) {
    const std::vector<std::int64_t> targets{9, label};
    EXPECT_EQ(cross_entropy(2, 10, logits.data(), targets.data(), 1, dlogits.data()).bad_sample, 1);
    EXPECT_EQ(dlogits, std::vector<TypeParam>(20, TypeParam(7)));
  }
}

}  // namespace
}  // namespace lockstep::kernels
