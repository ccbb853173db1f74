#include "experts/host_executor.h"

#include <array>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/step_counter.h"
#include "experts/faster_team.h"
#include "experts/pair_pace.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// From so many threads on it is tried whether half of them are faster (experts/faster_team.h).
constexpr int kTryHalf = 4;

// Each expert is read once a job: by so many rows computing takes far longer than that.
constexpr int kMostJobRows = 2048;

// How long the thread and its team spin. Beside a GPU the next layer's job is a fraction of a
// millisecond away while tokens are generated, also behind dozens of layers that ask for nothing.
constexpr std::chrono::microseconds kSpin{1000};

// All experts of the layers, from the file. Rows choose each expert once.
ExpertSetLayout set_layout(const ModelSpec& spec, const HostExecutorOptions& options) {
  ExpertSetLayout layout{.first_layer = options.first_layer,
                         .max_rows = options.max_rows,
                         .f32_weights = options.f32_weights};
  for (int l = options.first_layer; l < options.end_layer; ++l) {
    const auto& moe = spec.layers[static_cast<std::size_t>(l)].moe;
    LayerExperts& layer = layout.experts.emplace_back();
    if (!moe) continue;
    layer.home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::host());
    layout.max_pairs = std::max(layout.max_pairs, options.max_rows * moe->n_used);
  }
  return layout;
}

class HostExecutor final : public ExpertExecutor {
 public:
  // `half`: a smaller team, or null.
  HostExecutor(const Model& model, std::unique_ptr<ExpertSet> set, std::shared_ptr<ThreadTeam> team,
               std::unique_ptr<ThreadTeam> half)
      : model_(model), set_(std::move(set)), team_(std::move(team)), half_(std::move(half)) {}
  ~HostExecutor() override {
    if (!thread_.joinable()) return;
    drop();
    submit_task(Task::stop);
    thread_.join();
  }

  std::string name() const override { return "host"; }
  ExpertLimits limits() const override {
    return {.max_rows = set_->layout().max_rows, .max_pairs = set_->layout().max_pairs, .jobs = 1};
  }

  Status submit(const ExpertJob& job) override {
    if (open_) return Error::make(ErrorCode::exhausted, "the host computes another job");
    TESSERA_TRY(set_->check(job));
    job_ = job;
    open_ = true;
    submit_task(Task::job);
    return {};
  }

  bool foresee(int layer, std::span<const std::int32_t> experts) override {
    if (!thread_.joinable() || open_ || !idle_.reached(n_tasks_) ||
        std::cmp_greater(experts.size(), limits().max_pairs))
      return false;
    foreseen_layer_ = layer;
    foreseen_.assign(experts.begin(), experts.end());
    submit_task(Task::fetch);
    return true;
  }

  Result<ExpertReport> collect(std::span<double> sums) override {
    CHECK(open_, "no job to collect");
    if (!thread_.joinable()) {
      compute(sums);
    } else {
      done_.wait_for(++jobs_done_, kSpin);
      std::copy_n(own_sums_.begin(), sums.size(), sums.begin());
    }
    open_ = false;
    TESSERA_TRY(model_.file().check_intact());
    return ExpertReport{.compute_us = compute_us_};
  }

  void drop() override {
    if (open_ && thread_.joinable()) done_.wait_for(++jobs_done_, kSpin);
    open_ = false;
  }

  void start_thread() {
    own_sums_.resize(static_cast<std::size_t>(set_->layout().max_rows) *
                     static_cast<std::size_t>(set_->n_embd()));
    foreseen_.reserve(static_cast<std::size_t>(set_->layout().max_pairs));
    thread_ = std::thread([this] {
      for (std::uint32_t next = 1;; ++next) {
        submitted_.wait_for(next, kSpin);
        switch (task(next)) {
          case Task::stop:
            return;
          case Task::fetch:
            fetch([&] { return submitted_.reached(next + 1); });
            idle_.advance();
            break;
          case Task::job:
            compute(std::span(own_sums_).first(job_.rows.size()));
            idle_.advance();
            done_.advance();
        }
      }
    });
  }

 private:
  // One may be submitted behind a fetch that is not done, which then ends.
  enum class Task : std::uint8_t { job, fetch, stop };
  Task& task(std::uint32_t number) { return tasks_[number % tasks_.size()]; }
  void submit_task(Task what) {
    if (!thread_.joinable()) return;
    task(++n_tasks_) = what;
    submitted_.advance();
  }

  // Which team computes so many pairs.
  bool are_few(std::size_t pairs) const {
    return half_ != nullptr && pairs > 0 && PairPace::size_of(pairs) == 0;
  }

  // With the team that will probably compute them.
  void fetch(const std::function<bool()>& enough) {
    const int team = are_few(foreseen_.size()) ? faster_.next() : 0;
    set_->fetch(foreseen_layer_, foreseen_, team_of(team), enough);
  }

  // Where there are two the other one leaves it the cores.
  ThreadTeam& team_of(int number) {
    if (half_ != nullptr) (number == 0 ? *half_ : *team_).rest();
    return number == 0 ? *team_ : *half_;
  }

  void compute(std::span<double> sums) {
    const bool small = are_few(job_.pairs.size());
    const int team = small ? faster_.next() : 0;
    const auto start = Clock::now();
    set_->compute(job_, sums, team_of(team));
    const std::chrono::duration<double, std::micro> spent = Clock::now() - start;
    compute_us_ = static_cast<std::int64_t>(spent.count());
    if (small && faster_.learn(team, spent.count() / static_cast<double>(job_.pairs.size())))
      log_debug("host: {} of {} threads compute the experts of few rows, which is faster",
                (faster_.chosen() == 0 ? *team_ : *half_).size(), team_->size());
  }

  const Model& model_;
  std::unique_ptr<ExpertSet> set_;
  std::shared_ptr<ThreadTeam> team_;
  std::unique_ptr<ThreadTeam> half_;
  FasterTeam faster_;
  ExpertJob job_;
  bool open_ = false;
  std::int64_t compute_us_ = 0;

  // With a thread of its own.
  std::vector<double> own_sums_;
  StepCounter submitted_, done_;
  StepCounter idle_;  // tasks of which nothing is left
  std::uint32_t jobs_done_ = 0;
  std::uint32_t n_tasks_ = 0;    // submitted
  std::array<Task, 2> tasks_{};  // the last two, by number
  int foreseen_layer_ = 0;       // of the last fetch
  std::vector<std::int32_t> foreseen_;
  std::thread thread_;
};

}  // namespace

int host_job_rows(const ShardLayout& layout) {
  return std::min(layout.max_rows, kMostJobRows);
}

Result<std::unique_ptr<ExpertExecutor>> make_host_executor(const Model& model,
                                                           const HostExecutorOptions& options) {
  try {
    std::shared_ptr<ThreadTeam> team = options.team;
    std::unique_ptr<ThreadTeam> half;
    if (team == nullptr) {
      ThreadTeamOptions threads{.threads = options.threads, .spin = kSpin, .cpus = options.cpus};
      team = std::make_shared<ThreadTeam>(threads);
      threads.threads = (options.threads + 1) / 2;
      if (options.threads >= kTryHalf) half = std::make_unique<ThreadTeam>(threads);
    }
    TESSERA_ASSIGN(auto set, ExpertSet::load(model, set_layout(model.spec(), options),
                                             {.team = team, .isa = options.isa}, {}));
    // Its first large job may come when a worker is lost: the memory is there by then.
    set->touch();
    auto host =
        std::make_unique<HostExecutor>(model, std::move(set), std::move(team), std::move(half));
    if (options.team == nullptr) host->start_thread();
    return std::unique_ptr<ExpertExecutor>(std::move(host));
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "cannot start {} threads for experts: {}",
                       options.threads, error.what());
  }
}

std::int64_t host_executor_bytes(const Model& model, const HostExecutorOptions& options,
                                 int team_threads) {
  const int threads = team_threads > 0 ? team_threads : options.threads;
  const ExpertSetFootprint set =
      expert_set_footprint(model, set_layout(model.spec(), options), threads);
  const std::int64_t sums =
      team_threads > 0
          ? 0
          : std::int64_t{options.max_rows} * model.spec().n_embd * std::int64_t{sizeof(double)};
  return set.weights + set.scratch + sums;
}

}  // namespace tessera
