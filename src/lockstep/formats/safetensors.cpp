#include "lockstep/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/hash.h"
#include "lockstep/formats/safetensors_header.h"

namespace lockstep::formats {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct Dtype {
  std::string_view name;
  std::size_t size_bytes;
};
constexpr Dtype kDtypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                             {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

std::string accepted_dtypes() {
  std::vector<std::string> names;
  for (const auto& dtype : kDtypes) names.emplace_back(dtype.name);
  return join(names, " ");
}

std::uint64_t little_endian_64(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

std::string_view header_text(std::string_view where, std::span<const std::byte> file) {
  if (file.size() < 8) {
    throw DataError(text(where, ": ", file.size(), " bytes, expected at least 8 for the header's length"));
  }
  const std::uint64_t length = little_endian_64(file.data());
  const std::uint64_t room = file.size() - 8;
  if (length > kMaxHeaderBytes) {
    throw DataError(text(where, ": header length is ", length, " (bytes 0 to 7), expected at most ", kMaxHeaderBytes),
                    "this is probably no safetensors file");
  }
  if (length > room) {
    throw DataError(text(where, ": header length is ", length, " (bytes 0 to 7), but only ", room, " bytes follow"),
                    "the file is cut off or no safetensors file");
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data() + 8), static_cast<std::size_t>(length));
  if (!header.starts_with('{')) throw DataError(text(where, ": header does not start with '{' at byte 8"));
  return header;
}

// Tensors must fill the buffer from end to end: a hole could hide bytes, an overlap makes writes to one reach another.
void check_cover(std::string_view where, std::vector<HeaderEntry>& entries, std::uint64_t buffer_bytes) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& left, const HeaderEntry& right) {
    return std::tie(left.begin, left.end, left.name) < std::tie(right.begin, right.end, right.name);
  });
  std::uint64_t expected_begin = 0;
  for (const auto& entry : entries) {
    if (entry.begin != expected_begin || entry.end < entry.begin || entry.end > buffer_bytes) {
      throw DataError(text(where, ": tensor \"", entry.name, "\" has data_offsets [", entry.begin, ", ", entry.end,
                           "), expected a begin of ", expected_begin, " and an end up to ", buffer_bytes,
                           " (tensors follow each other without hole or overlap)"));
    }
    expected_begin = entry.end;
  }
  if (expected_begin != buffer_bytes) {
    throw DataError(
        text(where, ": the tensors end at byte ", expected_begin, " of the data, but it has ", buffer_bytes, " bytes"));
  }
}

}  // namespace

std::size_t dtype_size_bytes(std::string_view dtype) {
  for (const auto& known : kDtypes) {
    if (known.name == dtype) return known.size_bytes;
  }
  return 0;
}

std::uint64_t tensor_size_bytes(std::string_view where, std::string_view dtype,
                                const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = dtype_size_bytes(dtype);
  if (bytes == 0) throw DataError(text(where, ": dtype \"", dtype, "\" is unknown, expected ", accepted_dtypes()));
  // An overflow counts even where a later size is 0, as in the reference reader.
  for (const auto size : shape) {
    if (size < 0) throw DataError(text(where, ": shape has the negative size ", size));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw DataError(text(where, ": the shape's number of bytes overflows"));
    }
  }
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(MappedMemory::read_only(path)) {
  const std::string where = path.string();
  const std::string_view header = header_text(where, file_.bytes());
  ParsedHeader parsed = parse_safetensors_header(where, header);
  const auto buffer = file_.bytes().subspan(8 + header.size());
  check_cover(where, parsed.entries, buffer.size());
  metadata_ = std::move(parsed.metadata);
  tensors_.reserve(parsed.entries.size());
  for (auto& entry : parsed.entries) {
    const std::string tensor_place = text(where, ": tensor \"", entry.name, "\"");
    const std::uint64_t expected = tensor_size_bytes(tensor_place, entry.dtype, entry.shape);
    if (expected != entry.end - entry.begin) {
      throw DataError(
          text(tensor_place, " spans ", entry.end - entry.begin, " bytes, but its dtype and shape need ", expected));
    }
    tensors_.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                        buffer.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(expected))});
  }
}

const TensorView* SafetensorsFile::find(std::string_view name) const noexcept {
  for (const auto& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

namespace {

// Checks each tensor and returns the order in which they are written.
std::vector<const TensorView*> writing_order(std::string_view where, std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    const std::string tensor_place = text(where, ": tensor \"", tensor.name, "\"");
    if (tensor.name == "__metadata__") throw DataError(text(tensor_place, ": the name is reserved"));
    if (!names.insert(tensor.name).second) throw DataError(text(tensor_place, " is given twice"));
    const std::uint64_t expected = tensor_size_bytes(tensor_place, tensor.dtype, tensor.shape);
    if (expected != tensor.bytes.size()) {
      throw DataError(
          text(tensor_place, " has ", tensor.bytes.size(), " bytes, but its dtype and shape need ", expected));
    }
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorView* left, const TensorView* right) {
    const std::size_t left_size = dtype_size_bytes(left->dtype);
    const std::size_t right_size = dtype_size_bytes(right->dtype);
    return left_size != right_size ? left_size > right_size : left->name < right->name;
  });
  return order;
}

std::string make_header(const std::vector<const TensorView*>& order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t begin = 0;
  for (const auto* tensor : order) {
    const std::uint64_t end = begin + tensor->bytes.size();
    header[tensor->name] = {{"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string dumped = header.dump();
  dumped.resize((dumped.size() + 7) / 8 * 8, ' ');
  return dumped;
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata) {
  const auto order = writing_order(path.string(), tensors);
  std::string header;
  try {
    header = make_header(order, metadata);
  } catch (const nlohmann::json::exception&) {
    throw DataError(text(path.string(), ": a tensor's name or the metadata is not valid UTF-8"));
  }
  if (header.size() > kMaxHeaderBytes) {
    throw DataError(
        text(path.string(), ": the header needs ", header.size(), " bytes, at most ", kMaxHeaderBytes, " are allowed"));
  }
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> 8 * i & 0xff);

  std::vector<std::string_view> pieces{length, header};
  for (const auto* tensor : order) {
    pieces.emplace_back(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
  }
  Sha256 hash;
  WrittenFile written;
  for (const auto piece : pieces) {
    hash.update(std::as_bytes(std::span(piece)));
    written.size_bytes += piece.size();
  }
  write_file_atomic(path, pieces);
  written.sha256 = hash.finish_hex();
  return written;
}

}  // namespace lockstep::formats
