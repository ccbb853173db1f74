// Runs the built program as a person would, and collects what it says.
#pragma once

#include <string>
#include <vector>

namespace tessera::testing {

// Models of the tree, without experts and with.
inline const std::string kDenseModel = TESSERA_SOURCE_DIR "/tests/data/golden/qwen3-bf16.gguf";
inline const std::string kMoeModel = TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf";

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
  double peak_bytes = 0;  // the largest that it, or a process of its own, ever was
};

struct Call {
  std::vector<std::string> arguments;
  std::string input;                     // standard input
  std::vector<std::string> environment;  // "NAME=VALUE", beside PATH and HOME
  std::string output;                    // where standard output goes; empty: into Outcome::out
};

// Killed after four minutes.
Outcome run_program(const Call& call);

// A folder for this process's files; also HOME of what run_program starts.
const std::string& scratch_folder();
// Inside it, where nothing is and nothing gets.
std::string missing_path();
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

// A running `tessera serve`, or another command that stays; killed by the destructor.
class ServerProcess {
 public:
  explicit ServerProcess(std::vector<std::string> arguments, const std::string& command = "serve",
                         const std::vector<std::string>& environment = {});  // as of a Call
  ~ServerProcess();
  // Waits until the output has this text; false after two minutes or at the program's end.
  bool wait_for(const std::string& text);
  void signal(int number) const;
  std::vector<int> children() const;
  int pid() const { return pid_; }
  int wait();  // exit code
  std::string output() const;

 private:
  int pid_ = -1;
  std::string log_;
};

}  // namespace tessera::testing
