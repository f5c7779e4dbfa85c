#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/half.h"

namespace lockstep::comm::testing {

// The same cases run over threads (comm_test.cpp) and over processes (comm_dist_test.cpp). Inputs are small whole
// numbers that every type holds exactly, so expected results are exact; rounding has tests of its own.

/// Element `index` of rank `rank`'s input: 0..4 for sums, so that eight ranks stay within U8 and exact in BF16.
inline int input_value(int rank, std::size_t index) {
  return static_cast<int>((index * 7 + static_cast<std::size_t>(rank) * 3 + index / 64) % 5);
}

inline int expected_value(ReduceOp op, int size, std::size_t index) {
  int result = input_value(0, index);
  for (int rank = 1; rank < size; ++rank) {
    const int next = input_value(rank, index);
    result = op == ReduceOp::kSum   ? result + next
             : op == ReduceOp::kMin ? std::min(result, next)
                                    : std::max(result, next);
  }
  return result;
}

/// Typed access to a buffer of any dtype.
class Values {
 public:
  Values(Dtype dtype, std::size_t count) : dtype_(dtype), count_(count), bytes_(count * size_bytes(dtype)) {}

  template <typename Function>
  void fill(Function value_at) {
    visit([&](auto* elements, auto, auto from_int) {
      for (std::size_t i = 0; i < count_; ++i) elements[i] = from_int(value_at(i));
    });
  }
  /// Expects value_at(i) everywhere; reports the first difference only.
  template <typename Function>
  void expect(const std::string& what, Function value_at) {
    visit([&](auto* elements, auto to_double, auto) {
      for (std::size_t i = 0; i < count_; ++i) {
        if (to_double(elements[i]) == static_cast<double>(value_at(i))) continue;
        ADD_FAILURE() << what << ": element " << i << " is " << to_double(elements[i]) << ", expected " << value_at(i);
        return;
      }
    });
  }
  Buffer buffer() { return {bytes_.data(), count_, dtype_}; }
  ConstBuffer const_buffer() const { return {bytes_.data(), count_, dtype_}; }

 private:
  template <typename T, typename Function>
  void visit_numbers(Function function) {
    function(
        reinterpret_cast<T*>(bytes_.data()), [](T value) { return static_cast<double>(value); },
        [](int value) { return static_cast<T>(value); });
  }
  /// Calls function(elements, to_double, from_int) for the dtype: chosen once, not for each element.
  template <typename Function>
  void visit(Function function) {
    const auto halves = reinterpret_cast<std::uint16_t*>(bytes_.data());
    switch (dtype_) {
      case Dtype::kF64:
        return visit_numbers<double>(function);
      case Dtype::kF32:
        return visit_numbers<float>(function);
      case Dtype::kI64:
        return visit_numbers<std::int64_t>(function);
      case Dtype::kI32:
        return visit_numbers<std::int32_t>(function);
      case Dtype::kU8:
        return visit_numbers<std::uint8_t>(function);
      case Dtype::kF16:
        return function(
            halves, [](std::uint16_t bits) { return static_cast<double>(f32_from_f16(bits)); },
            [](int value) { return f16_from_f32(static_cast<float>(value)); });
      case Dtype::kBF16:
        return function(
            halves, [](std::uint16_t bits) { return static_cast<double>(f32_from_bf16(bits)); },
            [](int value) { return bf16_from_f32(static_cast<float>(value)); });
    }
  }

  Dtype dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

inline void check_all_reduce(Communicator& comm, Dtype dtype, ReduceOp op, std::size_t count) {
  Values values(dtype, count);
  values.fill([&](std::size_t i) { return input_value(comm.rank(), i); });
  comm.all_reduce(values.buffer(), op).wait();
  values.expect(text("all_reduce ", name(dtype), " x", count, " op ", static_cast<int>(op)),
                [&](std::size_t i) { return expected_value(op, comm.size(), i); });
}

inline void check_reduce_scatter(Communicator& comm, Dtype dtype, ReduceOp op, std::size_t count) {
  const auto size = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  Values input(dtype, count * size);
  Values output(dtype, count);
  input.fill([&](std::size_t i) { return input_value(comm.rank(), i); });
  comm.reduce_scatter(input.const_buffer(), output.buffer(), op).wait();
  output.expect(text("reduce_scatter ", name(dtype), " x", count),
                [&](std::size_t i) { return expected_value(op, comm.size(), rank * count + i); });
  // The output may be the rank's own part of the input.
  Buffer part = input.buffer();
  part.data = static_cast<std::byte*>(part.data) + rank * count * size_bytes(dtype);
  part.count = count;
  comm.reduce_scatter(input.const_buffer(), part, op).wait();
  input.expect(text("reduce_scatter in place ", name(dtype), " x", count), [&](std::size_t i) {
    return i / std::max<std::size_t>(count, 1) == rank ? expected_value(op, comm.size(), i)
                                                       : input_value(comm.rank(), i);
  });
}

inline void check_all_gather(Communicator& comm, Dtype dtype, std::size_t count) {
  Values input(dtype, count);
  Values output(dtype, count * static_cast<std::size_t>(comm.size()));
  input.fill([&](std::size_t i) { return input_value(comm.rank(), i); });
  comm.all_gather(input.const_buffer(), output.buffer()).wait();
  output.expect(text("all_gather ", name(dtype), " x", count),
                [&](std::size_t i) { return input_value(static_cast<int>(i / count), i % count); });
}

inline void check_broadcast(Communicator& comm, Dtype dtype, std::size_t count, int root) {
  Values values(dtype, count);
  values.fill([&](std::size_t i) { return input_value(comm.rank(), i); });
  comm.broadcast(values.buffer(), root).wait();
  values.expect(text("broadcast ", name(dtype), " x", count, " from ", root),
                [&](std::size_t i) { return input_value(root, i); });
}

inline constexpr Dtype kAllDtypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16,
                                       Dtype::kI64, Dtype::kI32, Dtype::kU8};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};

/// Every collective at one size and type.
inline void check_all_kinds(Communicator& comm, Dtype dtype, std::size_t count) {
  for (const ReduceOp op : kAllOps) check_all_reduce(comm, dtype, op, count);
  for (const ReduceOp op : kAllOps) check_reduce_scatter(comm, dtype, op, count);
  check_all_gather(comm, dtype, count);
  for (int root = 0; root < comm.size(); ++root) check_broadcast(comm, dtype, count, root);
  comm.barrier();
}

/// The matrix of one communicator.
inline void check_matrix(Communicator& comm) {
  for (const Dtype dtype : kAllDtypes) {
    for (const std::size_t count : {0, 1, 3, 64, 1000, 10007}) check_all_kinds(comm, dtype, count);
  }
}

/// More pieces than there are slots. ThreadSanitizer makes every element cost 20 times as much.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kLargeCount = 700'000;
inline constexpr int kOverlapRounds = 1;
#else
inline constexpr std::size_t kLargeCount = 3'000'000;
inline constexpr int kOverlapRounds = 5;
#endif

/// Buffers of many pieces.
inline void check_large(Communicator& comm, std::size_t count) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) check_all_reduce(comm, dtype, ReduceOp::kSum, count);
  check_reduce_scatter(comm, Dtype::kF32, ReduceOp::kSum, count / static_cast<std::size_t>(comm.size()));
  check_all_gather(comm, Dtype::kF32, count / static_cast<std::size_t>(comm.size()));
  check_broadcast(comm, Dtype::kF32, count, comm.size() - 1);
}

/// Many collectives of different kinds and sizes in flight at once, finished out of order.
inline void check_overlap(Communicator& comm) {
  std::vector<Values> values;
  std::vector<Work> works;
  for (std::size_t i = 0; i < 24; ++i) values.emplace_back(Dtype::kF32, i * i * 500 + 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].fill([&](std::size_t k) { return input_value(comm.rank(), k + i); });
    works.push_back(i % 3 == 0 ? comm.broadcast(values[i].buffer(), 0)
                               : comm.all_reduce(values[i].buffer(), ReduceOp::kSum));
    if (i % 5 == 0) comm.progress();
    if (i == 11) comm.barrier();
  }
  while (!works[3].test()) comm.progress();
  for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].expect(text("overlapped collective ", i), [&](std::size_t k) {
      return i % 3 == 0 ? input_value(0, k + i) : expected_value(ReduceOp::kSum, comm.size(), k + i);
    });
  }
}

/// Sums of numbers that round: the result must be the sum in rank order, to the bit.
inline void check_rank_order(Communicator& comm) {
  for (const std::size_t count : {100, 50000}) {
    const auto input = [](int rank, std::size_t i) {
      return static_cast<float>(std::sin(static_cast<double>(i * 31 + static_cast<std::size_t>(rank) * 977))) *
             (i % 2 == 0 ? 1.0F : 1e5F);
    };
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = input(comm.rank(), i);
    comm.all_reduce({values.data(), count, Dtype::kF32}, ReduceOp::kSum).wait();
    for (std::size_t i = 0; i < count; ++i) {
      float expected = input(0, i);
      for (int rank = 1; rank < comm.size(); ++rank) expected += input(rank, i);
      ASSERT_EQ(values[i], expected) << "element " << i;
    }
  }
}

/// The message of the Failure that `body` throws; a failed expectation when it throws none.
template <typename Failure, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

}  // namespace lockstep::comm::testing
