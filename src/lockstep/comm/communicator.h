#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::comm {

class Store;
class FlightPage;

enum class Dtype { kF64, kF32, kF16, kBF16, kI64, kI32, kU8 };
std::size_t size_bytes(Dtype dtype);
const char* name(Dtype dtype);

enum class ReduceOp { kSum, kMin, kMax };

enum class Memory {
  kHost,
  kDevice,  ///< of the communicator's GPU
};

/// Borrowed contiguous elements. The owner keeps them alive, and untouched, until the collective's Work is done.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Memory memory = Memory::kHost;
};
struct ConstBuffer {
  ConstBuffer() = default;
  ConstBuffer(const void* data_in, std::size_t count_in, Dtype dtype_in, Memory memory_in = Memory::kHost)
      : data(data_in), count(count_in), dtype(dtype_in), memory(memory_in) {}
  ConstBuffer(const Buffer& buffer) : ConstBuffer(buffer.data, buffer.count, buffer.dtype, buffer.memory) {}

  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Memory memory = Memory::kHost;
};

/// Programmer's errors: data missing, types or counts that do not fit `size` equal parts.
void check_buffer(const ConstBuffer& buffer);
void check_parts(const ConstBuffer& part, const ConstBuffer& whole, int size);

/// A collective under way. For device memory "done" is meant in the order of streams: after wait() the work that is
/// then queued on the current stream sees the result, and nothing has waited on the host. Dropping it without wait() is
/// a bug (the buffers are still borrowed): its destructor waits.
class [[nodiscard]] Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool test() = 0;
    virtual void wait() = 0;
  };

  Work() = default;  ///< already done
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other);
  ~Work();

  /// True when done; helps the collective along but never blocks. Throws CommError.
  bool test();
  /// Returns when the result is in the buffer, or will be for the current stream. Throws CommError, TimeoutError.
  void wait();

 private:
  std::unique_ptr<State> state_;
};

struct CommOptions {
  /// Longest wait for the other ranks inside one collective; then TimeoutError names the missing ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Longest wait for the other ranks to appear.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  /// Distinguishes several communicators over one store, and appears in errors.
  std::string name = "world";
};

/// How one rank of the host is seen by the others.
struct RankLink {
  FlightPage* page = nullptr;  ///< flight recorder of its device collectives, in memory that the ranks share
  int pid = 0;                 ///< 0: a thread of this process
};

/// Collectives over the ranks of one job. Every rank must make the same calls in the same order with the same counts
/// and types; a difference is found and reported as CommError with what each rank asked for. Sums run in rank order, so
/// results are bit-identical on all ranks and from run to run. F16 and BF16 are summed in fp32 and rounded once.
///
/// One thread a communicator at a time. After CommError the communicator is unusable; destroy it.
/// Destruction is not a collective: a rank may leave once its own Work is done, and the others can still finish theirs.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const char* backend() const noexcept = 0;

  virtual Work all_reduce(Buffer buffer, ReduceOp op) = 0;
  /// `input` holds size() equal parts; part r, reduced, goes to `output` of rank r.
  virtual Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) = 0;
  /// `output` holds size() equal parts; part r is rank r's `input`.
  virtual Work all_gather(ConstBuffer input, Buffer output) = 0;
  virtual Work broadcast(Buffer buffer, int root) = 0;
  virtual void barrier() = 0;

  /// Moves posted collectives along without blocking: called between pieces of computation to overlap. Throws
  /// CommError once the communicator is unusable.
  virtual void progress() = 0;

  /// For a communicator that is to be made over this one. Without shared memory there are no pages.
  virtual RankLink link(int /*rank*/) const { return {}; }

  /// Says what the collectives that follow are for, until the next call: "bucket 2 of 5: fc1.weight". It is compared
  /// between ranks and appears in errors. The text must stay valid until their Work is done.
  void label(std::string_view label) noexcept { label_ = label; }
  std::string_view label() const noexcept { return label_; }

 private:
  std::string_view label_;
};

/// Ranks are processes of one host; data goes through shared memory. `store` is used only here, to meet.
/// Throws CommError when the ranks are not on one host, TimeoutError when some do not appear.
std::unique_ptr<Communicator> make_shm_communicator(Store& store, int rank, int size, const CommOptions& options);

/// Ranks are threads of this process: element r is for the thread of rank r.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size, const CommOptions& options);

/// World of one: every collective is a copy or nothing.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace lockstep::comm
