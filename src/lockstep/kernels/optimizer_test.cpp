#include "lockstep/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::kernels {
namespace {

const std::size_t kSizes[] = {0, 1, 3, 7, 8, 15, 16, 17, 63, 64, 100, 1000, 4096, 4097, 10007};

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> out;
  for (const CpuLevel level : {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level <= best_cpu_level()) out.push_back(level);
  }
  return out;
}

template <typename T>
std::vector<T> normal(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> distribution;
  std::vector<T> out(size);
  for (T& value : out) value = static_cast<T>(distribution(random));
  return out;
}

/// torch.optim.SGD's documented algorithm on one number, in double.
void sgd_reference(double& p, double g, double& buffer, const SgdStep& o) {
  g *= o.grad_scale;
  g += o.weight_decay * p;
  if (o.momentum != 0) {
    buffer = o.first_step ? g : o.momentum * buffer + (1 - o.dampening) * g;
    g = o.nesterov ? g + o.momentum * buffer : buffer;
  }
  p -= o.lr * g;
}

void adam_reference(double& p, double g, double& m, double& v, const AdamStep& o) {
  g *= o.grad_scale;
  if (o.decoupled_weight_decay) {
    p *= 1 - o.lr * o.weight_decay;
  } else {
    g += o.weight_decay * p;
  }
  m = o.beta1 * m + (1 - o.beta1) * g;
  v = o.beta2 * v + (1 - o.beta2) * g * g;
  const double corrected_m = m / (1 - std::pow(o.beta1, double(o.step)));
  const double corrected_v = v / (1 - std::pow(o.beta2, double(o.step)));
  p -= o.lr * corrected_m / (std::sqrt(corrected_v) + o.eps);
}

template <typename T>
class OptimizerTyped : public ::testing::Test {
 public:
  static constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;
};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(OptimizerTyped, ElementTypes);

TYPED_TEST(OptimizerTyped, SgdFollowsTheDocumentedAlgorithm) {
  using T = TypeParam;
  const SgdStep options[] = {
      {.lr = 0.1},
      {.lr = 0.1, .weight_decay = 0.01, .grad_scale = 0.25},
      {.lr = 0.05, .momentum = 0.9},
      {.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01},
      {.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .grad_scale = 2},
  };
  for (const CpuLevel level : levels()) {
    for (const std::size_t size : kSizes) {
      for (SgdStep o : options) {
        SCOPED_TRACE(text(to_string(level), " size ", size, " momentum ", o.momentum, " nesterov ", o.nesterov));
        auto values = normal<T>(size, 1);
        std::vector<T> buffer(o.momentum == 0 ? 0 : size, std::numeric_limits<T>::quiet_NaN());
        std::vector<double> want(values.begin(), values.end()), want_buffer(size);
        for (unsigned step = 0; step < 4; ++step) {
          o.first_step = step == 0;
          const auto gradients = normal<T>(size, 10 + step);
          sgd_step<T>(values, gradients, buffer, o, level);
          for (std::size_t i = 0; i < size; ++i) sgd_reference(want[i], double(gradients[i]), want_buffer[i], o);
        }
        for (std::size_t i = 0; i < size; ++i) ASSERT_NEAR(double(values[i]), want[i], this->kTolerance * 4) << i;
      }
    }
  }
}

TYPED_TEST(OptimizerTyped, AdamAndAdamWFollowTheDocumentedAlgorithm) {
  using T = TypeParam;
  const AdamStep options[] = {
      {.lr = 0.01},
      {.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.5},
      {.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true},
      {.lr = 0.1, .beta1 = 0.3, .beta2 = 0.5, .eps = 1e-3},  // beta1 below one half: the other branch of lerp
  };
  for (const CpuLevel level : levels()) {
    for (const std::size_t size : kSizes) {
      for (AdamStep o : options) {
        SCOPED_TRACE(text(to_string(level), " size ", size, " beta1 ", o.beta1, " decay ", o.weight_decay));
        auto values = normal<T>(size, 1);
        std::vector<T> m(size), v(size);
        std::vector<double> want(values.begin(), values.end()), want_m(size), want_v(size);
        for (o.step = 1; o.step <= 5; ++o.step) {
          const auto gradients = normal<T>(size, 10 + static_cast<unsigned>(o.step));
          adam_step<T>(values, gradients, m, v, o, level);
          for (std::size_t i = 0; i < size; ++i) {
            adam_reference(want[i], double(gradients[i]), want_m[i], want_v[i], o);
          }
        }
        for (std::size_t i = 0; i < size; ++i) ASSERT_NEAR(double(values[i]), want[i], this->kTolerance * 10) << i;
      }
    }
  }
}

TYPED_TEST(OptimizerTyped, SumOfSquaresIsExactEnoughAndTheSameOnEveryCpu) {
  using T = TypeParam;
  for (const std::size_t size : kSizes) {
    const auto values = normal<T>(size, 3);
    long double want = 0;
    for (const T value : values) want += static_cast<long double>(value) * static_cast<long double>(value);
    const double first = sum_of_squares<T>(values, CpuLevel::kBaseline);
    EXPECT_NEAR(first, double(want), 1e-12 * double(want));
    for (const CpuLevel level : levels()) EXPECT_EQ(sum_of_squares<T>(values, level), first) << to_string(level);
  }
  std::vector<T> values(100, T(1));
  values[57] = std::numeric_limits<T>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares<T>(values)));
}

TYPED_TEST(OptimizerTyped, FusedLevelsAgreeBitForBit) {
  using T = TypeParam;
  if (best_cpu_level() < CpuLevel::kAvx512) GTEST_SKIP() << "needs a CPU with AVX-512, to compare it with AVX2";
  auto a = normal<T>(1003, 1), b = a;
  const auto gradients = normal<T>(1003, 2);
  std::vector<T> am(1003), av(1003), bm(1003), bv(1003);
  for (std::int64_t step = 1; step <= 3; ++step) {
    const AdamStep o{.lr = 0.01, .weight_decay = 0.1, .step = step};
    adam_step<T>(a, gradients, am, av, o, CpuLevel::kAvx2);
    adam_step<T>(b, gradients, bm, bv, o, CpuLevel::kAvx512);
  }
  EXPECT_EQ(a, b);
}

TEST(Optimizer, UnequalLengthsAreRefused) {
  std::vector<float> values(4), gradients(3);
  EXPECT_THROW(sgd_step<float>(values, gradients, {}, {.lr = 0.1}), std::logic_error);
  gradients.resize(4);
  EXPECT_THROW(sgd_step<float>(values, gradients, {}, {.lr = 0.1, .momentum = 0.9}), std::logic_error);
  EXPECT_THROW(adam_step<float>(values, gradients, values, {}, {}), std::logic_error);
}

}  // namespace
}  // namespace lockstep::kernels
