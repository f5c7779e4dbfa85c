#include "lockstep/data/gather.h"

namespace lockstep::data {

namespace {

template <typename Scalar>
void look_up(const std::uint8_t* __restrict in, std::size_t size, const Scalar* __restrict table,
             Scalar* __restrict out) {
  for (std::size_t i = 0; i < size; ++i) out[i] = table[in[i]];
}

// Images lie anywhere in memory: ask for the next one while this one is worked on.
void prefetch(const std::uint8_t* image, std::size_t size_bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kMostBytes = 4096;  // the hardware follows a longer run by itself
  for (std::size_t at = 0; at < std::min(size_bytes, kMostBytes); at += kLine) __builtin_prefetch(image + at);
}

}  // namespace

template <typename Scalar>
BatchGather<Scalar>::BatchGather(const ImageDataset& dataset)
    : pixels_(dataset.pixels.const_data_ptr<std::uint8_t>()),
      labels_(dataset.labels.const_data_ptr<std::int64_t>()),
      channels_(static_cast<std::size_t>(dataset.channels())),
      plane_size_(static_cast<std::size_t>(dataset.height() * dataset.width())) {
  tables_.reserve(channels_ * 256);
  for (std::size_t channel = 0; channel < channels_; ++channel) {
    const auto mean = static_cast<Scalar>(dataset.mean[channel]);
    const auto deviation = static_cast<Scalar>(dataset.deviation[channel]);
    for (int value = 0; value < 256; ++value) {
      tables_.push_back((static_cast<Scalar>(value) / Scalar{255} - mean) / deviation);
    }
  }
}

template <typename Scalar>
void BatchGather<Scalar>::operator()(const std::int64_t* indices, std::int64_t count, Scalar* input,
                                     std::int64_t* target) const {
  const std::size_t image_size = channels_ * plane_size_;
  const auto image_at = [&](std::int64_t i) { return pixels_ + static_cast<std::size_t>(indices[i]) * image_size; };
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) prefetch(image_at(i + 1), image_size);
    const std::uint8_t* image = image_at(i);
    for (std::size_t channel = 0; channel < channels_; ++channel) {
      look_up(image + channel * plane_size_, plane_size_, tables_.data() + channel * 256, input);
      input += plane_size_;
    }
    target[i] = labels_[indices[i]];
  }
}

template class BatchGather<float>;
template class BatchGather<double>;

}  // namespace lockstep::data
