#include "lockstep/formats/cifar.h"

#include <cstring>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPixelBytes = 3072;

struct Layout {
  const char* name;
  std::size_t label_bytes;
  const char* archive_folder;
  const char* archive;
};

Layout layout_of(CifarKind kind) {
  if (kind == CifarKind::kCifar10) return {"CIFAR-10", 1, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"};
  return {"CIFAR-100", 2, "cifar-100-binary", "cifar-100-binary.tar.gz"};
}

void check_label(const fs::path& path, std::size_t record, std::size_t offset, const char* what, std::uint8_t label,
                 int num_classes) {
  if (label < num_classes) return;
  throw DataError(text(path.string(), ": ", what, " ", int{label}, " of record ", record, " (byte ", offset,
                       ") is out of range, expected 0 to ", num_classes - 1));
}

MappedMemory map_records(const fs::path& path, const Layout& layout) {
  MappedMemory file = MappedMemory::read_only(path);
  const std::size_t record_bytes = layout.label_bytes + kPixelBytes;
  if (file.size_bytes() == 0) {
    throw DataError(text(path.string(), ": is empty, expected ", layout.name, " records of ", record_bytes, " bytes"));
  }
  const std::size_t tail = file.size_bytes() % record_bytes;
  if (tail != 0) {
    const std::size_t whole = file.size_bytes() / record_bytes;
    throw DataError(text(path.string(), ": ", file.size_bytes(), " bytes are no whole number of ", layout.name,
                         " records of ", record_bytes, " bytes: ", tail, " bytes remain after record ", whole,
                         " (byte ", whole * record_bytes, ")"),
                    "the file is cut off, compressed or of another format");
  }
  return file;
}

}  // namespace

CifarImages read_cifar_files(CifarKind kind, const std::vector<fs::path>& paths) {
  const Layout layout = layout_of(kind);
  const std::size_t record_bytes = layout.label_bytes + kPixelBytes;
  std::vector<MappedMemory> files;
  std::size_t count = 0;
  for (const auto& path : paths) {
    files.push_back(map_records(path, layout));
    count += files.back().size_bytes() / record_bytes;
  }

  CifarImages images;
  images.count = static_cast<std::int64_t>(count);
  images.labels.reserve(count);
  auto pixels = std::make_shared_for_overwrite<std::uint8_t[]>(count * kPixelBytes);
  std::uint8_t* out = pixels.get();
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(files[f].data());
    for (std::size_t record = 0; record < files[f].size_bytes() / record_bytes; ++record) {
      const std::size_t offset = record * record_bytes;
      if (kind == CifarKind::kCifar100) {
        check_label(paths[f], record, offset, "coarse label", bytes[offset], 20);
        images.coarse_labels.push_back(bytes[offset]);
      }
      const std::size_t label_at = offset + layout.label_bytes - 1;
      check_label(paths[f], record, label_at, "label", bytes[label_at], kind == CifarKind::kCifar10 ? 10 : 100);
      images.labels.push_back(bytes[label_at]);
      std::memcpy(out, bytes + offset + layout.label_bytes, kPixelBytes);
      out += kPixelBytes;
    }
  }
  images.pixels = std::move(pixels);
  return images;
}

CifarPaths find_cifar_files(CifarKind kind, const fs::path& folder) {
  const Layout layout = layout_of(kind);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw DataError(text(folder.string(), fs::exists(folder, error) ? ": is not a folder" : ": no such folder",
                         ", expected the folder with ", layout.name, "'s binary files"),
                    text("unpack ", layout.archive, " and give its folder ", layout.archive_folder));
  }
  const fs::path root =
      fs::is_directory(folder / layout.archive_folder, error) ? folder / layout.archive_folder : folder;
  CifarPaths paths;
  if (kind == CifarKind::kCifar10) {
    for (int i = 1; i <= 5; ++i) paths.train.push_back(root / text("data_batch_", i, ".bin"));
    paths.test.push_back(root / "test_batch.bin");
  } else {
    paths.train.push_back(root / "train.bin");
    paths.test.push_back(root / "test.bin");
  }
  std::vector<std::string> missing;
  for (const auto* group : {&paths.train, &paths.test}) {
    for (const auto& path : *group) {
      if (!fs::exists(path, error)) missing.push_back(path.filename().string());
    }
  }
  if (!missing.empty()) {
    throw DataError(
        text(root.string(), ": ", layout.name, "'s binary files are not all there, missing: ", join(missing, ", ")),
        text("unpack ", layout.archive, " (the binary version, not the Python one)",
             kind == CifarKind::kCifar10 ? " or make learnable images with: lockstep data make cifar10 DIR" : ""));
  }
  return paths;
}

}  // namespace lockstep::formats
