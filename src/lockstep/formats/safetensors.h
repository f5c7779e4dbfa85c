#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::formats {

/// One tensor of a safetensors file. `bytes` is C order, little-endian, and is not owned.
struct TensorView {
  std::string name;
  std::string dtype;  ///< F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Bytes of one element; 0 for a dtype that is not in TensorView's list.
std::size_t dtype_size_bytes(std::string_view dtype);

/// Number of bytes that `shape` needs; DataError with `where` in front when it overflows, has a negative size or the
/// dtype is unknown.
std::uint64_t tensor_size_bytes(std::string_view where, std::string_view dtype, const std::vector<std::int64_t>& shape);

/// A safetensors file, mapped for reading. The header is untrusted: every bound is checked, duplicate names, holes and
/// overlaps are refused, and at most 100,000,000 bytes of header are read.
///
/// The views live as long as this object. Their addresses are aligned to the element size in files whose header is
/// padded to 8 bytes and whose tensors are ordered by descending element size, as all known writers do; copy with
/// memcpy where that is not certain.
class SafetensorsFile {
 public:
  /// Throws DataError that names the path, the tensor or byte, and what was expected.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their place in the file.
  const std::vector<TensorView>& tensors() const noexcept { return tensors_; }
  /// nullptr when there is no tensor of that name.
  const TensorView* find(std::string_view name) const noexcept;
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

 private:
  MappedMemory file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct WrittenFile {
  std::uint64_t size_bytes = 0;
  std::string sha256;
};

/// Writes `tensors` atomically, ordered by descending element size and then by name as the reference writer does, so
/// that equal content gives equal bytes. Throws DataError for a wrong dtype, shape, length, or a name that is repeated
/// or not UTF-8; SystemError when the disk refuses.
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep::formats
