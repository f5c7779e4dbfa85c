#include <algorithm>
#include <map>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/hook.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

namespace {

// One parameter's matrix [rows, columns] and what it keeps from step to step.
struct Factor {
  at::Tensor right;  ///< [columns, rank], the last step's, which starts the next power iteration
  at::Tensor error;  ///< [rows, columns], what earlier steps left out
};

struct Matrix {
  at::Tensor gradient;  ///< [rows, columns], the bucket's own memory where it can be viewed so
  at::Tensor target;    ///< the parameter's gradient, in its own shape
  at::Tensor left, right;
  Factor* factor = nullptr;
};

at::Tensor orthonormal(const at::Tensor& left) {
  return std::get<0>(at::linalg_qr(left));
}

// P = M Q summed over ranks, orthonormalised; Q = M^T P summed; the sum of all M is about P Q^T. The second sum can
// only start when the first is done, so it is posted in wait(), which all ranks call in the same order.
class PowerSgdWork final : public comm::Work::State {
 public:
  PowerSgdWork(std::vector<Matrix> matrices, std::vector<at::Tensor> vectors, comm::Communicator& communicator)
      : matrices_(std::move(matrices)), vectors_(std::move(vectors)), communicator_(communicator) {
    for (auto& matrix : matrices_) first_.push_back(sum(matrix.left));
    for (auto& vector : vectors_) {
      rows_.push_back(vector.contiguous());
      first_.push_back(sum(rows_.back()));
    }
  }

  // Half of the exchange is still to be posted, so only wait() can finish it.
  bool test() override { return false; }

  void wait() override {
    at::NoGradGuard no_grad;
    for (auto& work : first_) work.wait();
    for (std::size_t v = 0; v < vectors_.size(); ++v) vectors_[v].copy_(rows_[v]);
    std::vector<comm::Work> second;
    for (auto& matrix : matrices_) {
      matrix.left = orthonormal(matrix.left);
      matrix.right = at::matmul(matrix.gradient.t(), matrix.left).contiguous();
      second.push_back(sum(matrix.right));
    }
    for (std::size_t m = 0; m < matrices_.size(); ++m) {
      second[m].wait();
      auto& [gradient, target, left, right, factor] = matrices_[m];
      const auto total = at::matmul(left, right.t());
      factor->error = gradient - total / communicator_.size();
      factor->right = right / communicator_.size();
      target.copy_(total.view(target.sizes()));
    }
  }

 private:
  comm::Work sum(const at::Tensor& tensor) { return communicator_.all_reduce(buffer_of(tensor), comm::ReduceOp::kSum); }

  std::vector<Matrix> matrices_;
  std::vector<at::Tensor> vectors_, rows_;
  comm::Communicator& communicator_;
  std::vector<comm::Work> first_;
};

class PowerSgdHook final : public CommunicationHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {
    if (options.rank < 1) throw ConfigError(text("PowerSGD rank is ", options.rank, ": expected 1 or more"));
  }

  comm::Work start(const GradientBucket& bucket, comm::Communicator& communicator) override {
    at::NoGradGuard no_grad;
    auto& factors = factors_[bucket.index];
    factors.resize(bucket.parameters.size());
    if (steps_[bucket.index]++ < options_.start_step) {
      return communicator.all_reduce(buffer_of(bucket.flat), comm::ReduceOp::kSum);
    }
    std::vector<Matrix> matrices;
    std::vector<at::Tensor> vectors;
    for (std::size_t p = 0; p < bucket.parameters.size(); ++p) {
      const auto& gradient = bucket.parameters[p];
      if (!shrinks(gradient)) {
        vectors.push_back(gradient);
        continue;
      }
      // In fp32 at least: fp16 and bf16 have no QR decomposition, and rounding would undo the error feedback.
      auto matrix = gradient.reshape({gradient.size(0), -1})
                        .to(at::toOpMathType(gradient.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
      auto& factor = factors[p];
      if (!factor.right.defined()) factor = first_factor(matrix, bucket.index, p);
      matrix.add_(factor.error);
      auto left = at::matmul(matrix, orthonormal(factor.right)).contiguous();
      matrices.push_back({matrix, gradient, left, {}, &factor});
    }
    return comm::Work(std::make_unique<PowerSgdWork>(std::move(matrices), std::move(vectors), communicator));
  }

  std::vector<std::pair<std::string, at::Tensor>> state() override {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (auto& [bucket, factors] : factors_) {
      for (std::size_t p = 0; p < factors.size(); ++p) {
        if (!factors[p].right.defined()) continue;
        tensors.emplace_back(text("bucket", bucket, ".", p, ".right"), factors[p].right);
        tensors.emplace_back(text("bucket", bucket, ".", p, ".error"), factors[p].error);
      }
    }
    return tensors;
  }

 private:
  bool shrinks(const at::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0) return false;
    const double rows = static_cast<double>(gradient.size(0));
    const double columns = static_cast<double>(gradient.numel()) / rows;
    return (rows + columns) * options_.rank * options_.min_compression < rows * columns;
  }

  Factor first_factor(const at::Tensor& matrix, int bucket, std::size_t place) const {
    const auto seed = options_.seed + 1000003ULL * static_cast<std::uint64_t>(bucket) + place;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return {at::randn({matrix.size(1), options_.rank}, generator, at::TensorOptions(at::kDouble)).to(matrix.options()),
            at::zeros_like(matrix)};
  }

  const PowerSgdOptions options_;
  std::map<int, std::vector<Factor>> factors_;
  std::map<int, std::int64_t> steps_;
};

}  // namespace

std::shared_ptr<CommunicationHook> make_power_sgd_hook(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace lockstep::parallel
