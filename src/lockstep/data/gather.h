#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/image_dataset.h"

namespace lockstep::data {

/// Copies images out of a data set into a batch and normalises them in the same pass. Scalar is float or double.
///
/// A channel has 256 possible results, worked out once in Scalar as (value / 255 - mean) / deviation: bit for bit what
/// torchvision's ToTensor and Normalize give, without a division for each pixel. Immutable, so threads share one.
template <typename Scalar>
class BatchGather {
 public:
  /// `dataset` must outlive this object.
  explicit BatchGather(const ImageDataset& dataset);

  /// Images `indices[0 .. count)` to `input` [count, C, H, W], their labels to `target` [count]. The indices must lie
  /// inside the data set.
  void operator()(const std::int64_t* indices, std::int64_t count, Scalar* input, std::int64_t* target) const;

 private:
  const std::uint8_t* pixels_;
  const std::int64_t* labels_;
  std::size_t channels_;
  std::size_t plane_size_;
  std::vector<Scalar> tables_;  ///< [C, 256]
};

}  // namespace lockstep::data
