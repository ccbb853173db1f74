// tessera logits: the whole forward pass over given tokens, row after row into a file.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace tessera::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are written as they are");

constexpr std::int64_t kMaxLogitBytes = std::int64_t{64} << 20;
constexpr int kRows = 256;  // of a step, where nobody asked for others

// A file that appears under its name when it is complete. What is not a regular file (a pipe, a
// device) is written in place.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path) {
    OutputFile file;
    file.path_ = path;
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    const bool in_place =
        std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
    if (!in_place) file.temporary_ = path + fmt::format(".{}.part", getpid());
    file.stream_.open(in_place ? path : file.temporary_, std::ios::binary | std::ios::trunc);
    if (!file.stream_) return file.failure();
    return file;
  }
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        stream_(std::move(other.stream_)) {}
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile() {
    std::error_code error;
    if (!temporary_.empty()) std::filesystem::remove(temporary_, error);
  }

  Status write(std::span<const float> values) {
    stream_.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size_bytes()));
    if (!stream_) return failure();
    return {};
  }

  Status commit() {
    stream_.close();
    if (!stream_) return failure();
    if (temporary_.empty()) return {};
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (error) return Error::make(ErrorCode::io, "{}: {}", path_, error.message());
    temporary_.clear();
    return {};
  }

 private:
  OutputFile() = default;
  Error failure() const {
    return Error::make(ErrorCode::io, "{}: cannot be written: {}", path_, std::strerror(errno));
  }

  std::string path_;
  std::string temporary_;
  std::ofstream stream_;
};

Result<std::vector<TokenId>> read_ids(const Config& config) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const bool from_file = config.given("logits.ids_file");
  if (from_file == config.given("run.ids"))
    return Error::make(ErrorCode::invalid, "give the tokens with either --ids or --ids-file");
  std::string text = config.text("run.ids");
  const std::string& path = config.text("logits.ids_file");
  if (from_file) {
    TESSERA_ASSIGN(text, read_text_file(path));
  }
  Result<std::vector<int>> ids = parse_int_list(text, 0, kMost);
  if (!ids) return std::move(ids).error().in(from_file ? path : "--ids");
  return ids;
}

Status check_ids(const ModelSpec& spec, const std::vector<TokenId>& ids, const Config& config) {
  for (const TokenId id : ids)
    if (id >= spec.n_vocab)
      return Error::make(ErrorCode::invalid, "token {}: the model has ids 0 to {}", id,
                         spec.n_vocab - 1);
  const int asked = config.small("kv.ctx");
  const int most = asked > 0 ? asked : spec.context_length;
  if (ids.size() > static_cast<std::size_t>(most))
    return Error::make(ErrorCode::invalid, "{} tokens do not fit in the context of {}", ids.size(),
                       most);
  return {};
}

Status write_rows(LoadedModel& loaded, const std::vector<TokenId>& ids, int chunk,
                  OutputFile& file) {
  TESSERA_ASSIGN(SequenceState sequence, loaded.pool->admit(static_cast<int>(ids.size())));
  loaded.pipeline->reset_slot(sequence.slot());
  Progress progress({.what = "logits", .unit = ProgressUnit::steps});
  const int total = static_cast<int>(ids.size());
  std::vector<std::int32_t> logit_rows;
  for (int at = 0; at < total;) {
    const int rows = std::min(chunk, total - at);
    logit_rows.resize(static_cast<std::size_t>(rows));
    for (int i = 0; i < rows; ++i) logit_rows[static_cast<std::size_t>(i)] = i;
    sequence.extend(rows);
    const SequenceRows part{.n_rows = rows,
                            .first_position = at,
                            .slot = sequence.slot(),
                            .pages = sequence.page_tables()};
    TESSERA_TRY(
        loaded.pipeline->forward({.tokens = {ids.data() + at, static_cast<std::size_t>(rows)},
                                  .sequences = {&part, 1},
                                  .logit_rows = logit_rows}));
    TESSERA_TRY(file.write(loaded.pipeline->logits()));
    at += rows;
    sequence.trim(at);
    progress.update(at, total);
  }
  return {};
}

Status logits(const Config& config, const std::vector<TokenId>& ids) {
  TESSERA_ASSIGN(const ModelPath path, model_path(config));
  TESSERA_ASSIGN(const Model model, Model::open(path.path));
  const ModelSpec& spec = model.spec();
  TESSERA_TRY(check_ids(spec, ids, config));
  const auto row_bytes = static_cast<std::int64_t>(spec.n_vocab) * 4;
  const int asked = config.small("engine.prefill_chunk");
  const int rows = static_cast<int>(
      std::clamp<std::int64_t>(kMaxLogitBytes / row_bytes, 1, asked > 0 ? asked : kRows));
  TESSERA_ASSIGN(OutputFile file, OutputFile::create(config.text("logits.out")));
  MetricsRegistry metrics;
  TESSERA_ASSIGN(
      LoadedModel loaded,
      load_model(config, model, {.logit_rows = rows, .context = static_cast<int>(ids.size())},
                 metrics));
  TESSERA_TRY(write_rows(loaded, ids, rows, file));
  return file.commit();
}

}  // namespace

int logits_command(const Config& config) {
  if (!config.given("logits.out"))
    return misuse(Error::make(ErrorCode::invalid, "say where to write with --out PATH"));
  const Result<std::vector<TokenId>> ids = read_ids(config);
  if (!ids) return ids.error().code == ErrorCode::io ? fail(ids.error()) : misuse(ids.error());
  return exit_code(logits(config, *ids));
}

}  // namespace tessera::cli
