#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace lockstep::formats {

/// Images out of an IDX file (magic 2051: bytes, 3 dimensions): `pixels` is uint8 [count, rows, cols] in C order.
struct IdxImages {
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::shared_ptr<const std::uint8_t[]> pixels;
  std::filesystem::path path;  ///< the file that was read, with or without .gz
};

/// Labels out of an IDX file (magic 2049: bytes, 1 dimension).
struct IdxLabels {
  std::vector<std::uint8_t> labels;
  std::filesystem::path path;
};

struct IdxSet {
  IdxImages images;
  IdxLabels labels;
};

/// `path`, or its twin with ".gz" added or removed when only that exists. Throws DataError that names both.
std::filesystem::path find_idx_file(const std::filesystem::path& path);

/// Readers for plain and gzip-compressed files under either name. Any number of samples from 1 up is taken. Every
/// number of the header is checked against what the file can hold before memory is taken for it. Throws DataError with
/// the path and the expected and found magic or size.
IdxImages read_idx_images(const std::filesystem::path& path);
IdxLabels read_idx_labels(const std::filesystem::path& path);

/// Both files of one data set. Their counts must agree and every label lie below `num_classes`.
IdxSet read_idx_set(const std::filesystem::path& images, const std::filesystem::path& labels, int num_classes);

}  // namespace lockstep::formats
