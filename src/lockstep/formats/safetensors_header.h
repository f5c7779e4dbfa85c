#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::formats {

/// One entry of the JSON header as written; nothing is checked against the data yet.
struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< data_offsets, relative to the end of the header
  std::uint64_t end = 0;
};

struct ParsedHeader {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses the header without building a JSON tree, so that memory stays within a small multiple of its length whatever
/// it nests. Throws DataError with `where`, the byte in the header where that is known, and the offending key.
ParsedHeader parse_safetensors_header(std::string_view where, std::string_view header);

}  // namespace lockstep::formats
