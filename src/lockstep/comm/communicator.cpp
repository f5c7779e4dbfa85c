#include "lockstep/comm/communicator.h"

#include "lockstep/base/error.h"

namespace lockstep::comm {

std::size_t size_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kU8:
      return 1;
  }
  LOCKSTEP_CHECK(!"dtype out of range");
}

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return "f64";
    case Dtype::kF32:
      return "f32";
    case Dtype::kF16:
      return "f16";
    case Dtype::kBF16:
      return "bf16";
    case Dtype::kI64:
      return "i64";
    case Dtype::kI32:
      return "i32";
    case Dtype::kU8:
      return "u8";
  }
  LOCKSTEP_CHECK(!"dtype out of range");
}

void check_buffer(const ConstBuffer& buffer) {
  LOCKSTEP_CHECK(buffer.data != nullptr || buffer.count == 0);
}

void check_parts(const ConstBuffer& part, const ConstBuffer& whole, int size) {
  check_buffer(part);
  check_buffer(whole);
  LOCKSTEP_CHECK(part.dtype == whole.dtype && part.memory == whole.memory);
  LOCKSTEP_CHECK(whole.count == part.count * static_cast<std::size_t>(size));
}

Work& Work::operator=(Work&& other) {
  if (this != &other) {
    wait();
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  if (!state_) return;
  // A failure here has already made the communicator unusable: its next call throws it again.
  try {
    state_->wait();
  } catch (...) {
  }
}

bool Work::test() {
  if (!state_) return true;
  if (!state_->test()) return false;
  state_.reset();
  return true;
}

void Work::wait() {
  if (!state_) return;
  // Released first: after a failure the buffers are no longer borrowed, and a second wait() has nothing to wait for.
  const auto state = std::move(state_);
  state->wait();
}

}  // namespace lockstep::comm
