// For tests: a copy of a GGUF file with keys and tensors changed, renamed, dropped or added.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "model/model.h"

namespace tessera {

inline std::string golden_path(const std::string& name) {
  return TESSERA_SOURCE_DIR "/tests/data/golden/" + name + "-bf16.gguf";
}

class EditedFile {
 public:
  explicit EditedFile(std::string source) : source_(std::move(source)) {
    static int count = 0;
    path_ = testing::TempDir() + "tessera_edit_" + std::to_string(::getpid()) + "_" +
            std::to_string(count++) + ".gguf";
  }
  EditedFile(const EditedFile&) = delete;
  EditedFile& operator=(const EditedFile&) = delete;
  ~EditedFile() { std::remove(path_.c_str()); }

  template <typename T>
  EditedFile& set(const std::string& key, T value) {
    keys_[key] = [key, value](gguf::Writer& out) { out.add(key, value); };
    return *this;
  }
  template <typename T>
  EditedFile& set_array(const std::string& key, std::vector<T> values) {
    keys_[key] = [key, values](gguf::Writer& out) { out.add_array(key, values); };
    return *this;
  }
  EditedFile& drop(const std::string& key) {
    keys_[key] = nullptr;
    return *this;
  }
  EditedFile& rename_tensor(const std::string& from, const std::string& to) {
    renamed_[from] = to;
    return *this;
  }
  EditedFile& drop_tensor(const std::string& name) {
    dropped_.insert(name);
    return *this;
  }
  // F32 zeros.
  EditedFile& add_tensor(const std::string& name, std::vector<std::int64_t> ne) {
    added_.emplace_back(name, std::move(ne));
    return *this;
  }
  // One tensor of the rows of several, matrix by matrix; they leave the file.
  EditedFile& fuse(const std::string& name, std::vector<std::string> parts) {
    for (const std::string& part : parts) dropped_.insert(part);
    fused_.emplace_back(name, std::move(parts));
    return *this;
  }

  Result<Model> open() {
    const Status status = write();
    if (!status) return status.error();
    return Model::open(path_);
  }
  std::string error() {
    const Result<Model> model = open();
    return model.ok() ? "" : model.error().message;
  }
  const std::string& path() const { return path_; }

  Status write() {
    TESSERA_ASSIGN(gguf::File in, gguf::File::open(source_));
    TESSERA_ASSIGN(gguf::Writer out, gguf::Writer::create(path_));
    for (const auto& entry : in.metadata().entries()) {
      if (!keys_.contains(entry.key)) out.add(entry.key, entry.value);
    }
    for (const auto& [key, add] : keys_) {
      if (add) add(out);
    }
    std::vector<std::vector<std::byte>> data;
    for (const gguf::TensorInfo& tensor : in.tensors()) copy_tensor(tensor, out, data);
    for (const auto& [name, parts] : fused_) fuse_tensors(in, name, parts, out, data);
    for (const auto& [name, ne] : added_) {
      out.add_tensor(name, BlockType::F32, ne);
      std::size_t bytes = sizeof(float);
      for (const std::int64_t n : ne) bytes *= static_cast<std::size_t>(n);
      data.emplace_back(bytes);
    }
    for (const auto& bytes : data) TESSERA_TRY(out.write(bytes));
    return out.finish();
  }

 private:
  void copy_tensor(const gguf::TensorInfo& tensor, gguf::Writer& out,
                   std::vector<std::vector<std::byte>>& data) const {
    if (dropped_.contains(tensor.name)) return;
    const auto renamed = renamed_.find(tensor.name);
    out.add_tensor(renamed == renamed_.end() ? tensor.name : renamed->second, tensor.type,
                   tensor.ne);
    data.emplace_back(tensor.data, tensor.data + tensor.bytes);
  }

  static void fuse_tensors(const gguf::File& in, const std::string& name,
                           const std::vector<std::string>& parts, gguf::Writer& out,
                           std::vector<std::vector<std::byte>>& data) {
    std::array<std::int64_t, 4> ne = in.find_tensor(parts[0])->ne;
    const std::int64_t matrices = ne[2];
    ne[1] = 0;
    for (const std::string& part : parts) ne[1] += in.find_tensor(part)->ne[1];
    std::vector<std::byte>& bytes = data.emplace_back();
    for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
      for (const std::string& part : parts) {
        const gguf::TensorInfo& tensor = *in.find_tensor(part);
        const auto size = static_cast<std::int64_t>(tensor.bytes) / matrices;
        const std::byte* from = tensor.data + matrix * size;
        bytes.insert(bytes.end(), from, from + size);
      }
    }
    out.add_tensor(name, in.find_tensor(parts[0])->type, ne);
  }

  std::string source_, path_;
  std::map<std::string, std::function<void(gguf::Writer&)>> keys_;
  std::map<std::string, std::string> renamed_;
  std::set<std::string> dropped_;
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> added_;
  std::vector<std::pair<std::string, std::vector<std::string>>> fused_;
};

}  // namespace tessera
