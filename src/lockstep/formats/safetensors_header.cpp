#include "lockstep/formats/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::formats {

namespace {

using nlohmann::json;

/// Receives the events of nlohmann's parser. The grammar is
///   { "__metadata__": {name: string}, name: {"dtype": string, "shape": [n...], "data_offsets": [begin, end]}, ... }
/// and `level_` says which object or array is open.
class HeaderReader final : public json::json_sax_t {
 public:
  explicit HeaderReader(std::string_view where) : where_(where) {}

  ParsedHeader take() { return std::move(parsed_); }

  bool start_object(std::size_t) override {
    if (level_ == Level::kOutside) {
      level_ = Level::kTop;
    } else if (level_ == Level::kTop && entry_.name == "__metadata__") {
      level_ = Level::kMetadata;
    } else if (level_ == Level::kTop) {
      level_ = Level::kEntry;
    } else {
      fail("an object where none is expected");
    }
    return true;
  }

  bool end_object() override {
    switch (level_) {
      case Level::kMetadata:
        level_ = Level::kTop;
        break;
      case Level::kEntry:
        finish_entry();
        level_ = Level::kTop;
        break;
      default:
        level_ = Level::kOutside;
    }
    return true;
  }

  bool key(json::string_t& name) override {
    if (level_ == Level::kTop) {
      if (!names_.insert(name).second) fail(text("the key \"", name, "\" twice"));
      entry_ = HeaderEntry{};
      entry_.name = name;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    key_ = name;
    return true;
  }

  bool string(json::string_t& value) override {
    if (level_ == Level::kMetadata) {
      if (!parsed_.metadata.emplace(key_, value).second) fail(text("the metadata key \"", key_, "\" twice"));
    } else if (level_ == Level::kEntry && key_ == "dtype" && !has_dtype_) {
      entry_.dtype = value;
      has_dtype_ = true;
    } else {
      fail_value("a string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ == Level::kEntry && key_ == "shape" && !has_shape_) {
      level_ = Level::kShape;
      has_shape_ = true;
    } else if (level_ == Level::kEntry && key_ == "data_offsets" && !has_offsets_) {
      level_ = Level::kOffsets;
      has_offsets_ = true;
      num_offsets_ = 0;
    } else {
      fail_value("an array");
    }
    return true;
  }

  bool end_array() override {
    if (level_ == Level::kOffsets && num_offsets_ != 2) fail(text("data_offsets of ", num_offsets_, " numbers, not 2"));
    level_ = Level::kEntry;
    return true;
  }

  bool number_unsigned(json::number_unsigned_t value) override {
    if (level_ == Level::kShape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) fail("a size beyond 2^63 - 1");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (level_ == Level::kOffsets && num_offsets_ < 2) {
      (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++num_offsets_;
    } else {
      fail_value("a number");
    }
    return true;
  }

  bool null() override { return fail_value("null"); }
  bool boolean(bool) override { return fail_value("a truth value"); }
  bool number_integer(json::number_integer_t value) override { return fail_value(text("the number ", value)); }
  bool number_float(json::number_float_t, const json::string_t& digits) override {
    return fail_value(text("the number ", digits));
  }
  bool binary(json::binary_t&) override { return fail_value("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw DataError(text(where_, ": header is not valid JSON at byte ", 8 + position));
  }

 private:
  enum class Level { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets };

  void finish_entry() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) fail("no complete dtype, shape and data_offsets");
    parsed_.entries.push_back(std::move(entry_));
  }

  bool fail_value(std::string_view what) { fail(text(what, " at key \"", key_, "\", which is not expected there")); }

  [[noreturn]] void fail(std::string_view what) {
    throw DataError(
        text(where_, ": header has ", what, entry_.name.empty() ? "" : text(" (tensor \"", entry_.name, "\")")));
  }

  std::string where_;
  Level level_ = Level::kOutside;
  std::set<std::string> names_;
  std::string key_;
  HeaderEntry entry_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int num_offsets_ = 0;
  ParsedHeader parsed_;
};

}  // namespace

ParsedHeader parse_safetensors_header(std::string_view where, std::string_view header) {
  HeaderReader reader(where);
  json::sax_parse(header.begin(), header.end(), &reader);
  return reader.take();
}

}  // namespace lockstep::formats
