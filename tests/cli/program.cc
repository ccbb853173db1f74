#include "tests/cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/send_signal.h"

namespace tessera::testing {
namespace {

// In the child.
[[noreturn]] void become(const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  std::vector<std::string> words = {TESSERA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> names = {"PATH=/usr/bin:/bin", "HOME=" + scratch_folder()};
  names.insert(names.end(), environment.begin(), environment.end());
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& name : names) envp.push_back(name.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

void redirect(const std::string& path, int flags, int to) {
  const int file = open(path.c_str(), flags, 0600);
  dup2(file, to);
  close(file);
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

const std::string& scratch_folder() {
  static const std::string folder = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera-cli-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    return pattern;
  }();
  return folder;
}

std::string missing_path() {
  return scratch_folder() + "/nobody_made_this";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Outcome run_program(const Call& call) {
  const std::string in = scratch_folder() + "/in", out = scratch_folder() + "/out",
                    err = scratch_folder() + "/err";
  write_file(in, call.input);
  const int pid = fork();
  if (pid == 0) {
    redirect(in, O_RDONLY, STDIN_FILENO);
    redirect(call.output.empty() ? out : call.output, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    alarm(240);
    become(call.arguments, call.environment);
  }
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  return {exit_code(status), read_file(out), read_file(err),
          static_cast<double>(usage.ru_maxrss) * 1024.0};
}

ServerProcess::ServerProcess(std::vector<std::string> arguments, const std::string& command,
                             const std::vector<std::string>& environment) {
  static int number = 0;
  log_ = scratch_folder() + "/" + command + std::to_string(++number) + ".log";
  arguments.insert(arguments.begin(), command);
  write_file(log_, "");
  pid_ = fork();
  if (pid_ == 0) {
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(log_, O_WRONLY | O_APPEND, STDOUT_FILENO);
    redirect(log_, O_WRONLY | O_APPEND, STDERR_FILENO);
    become(arguments, environment);
  }
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

bool ServerProcess::wait_for(const std::string& text) {
  for (int i = 0; i < 2400; ++i) {
    siginfo_t info{};
    const bool over =
        pid_ <= 0 ||
        waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == pid_;
    if (output().find(text) != std::string::npos) return true;
    if (over) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

std::vector<int> ServerProcess::children() const {
  std::vector<int> found;
  const std::string tasks = "/proc/" + std::to_string(pid_) + "/task";
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    std::ifstream file(task.path() / "children");
    for (int pid = 0; file >> pid;) found.push_back(pid);
  }
  return found;
}

void ServerProcess::signal(int number) const {
  send_signal(pid_, number);
}

int ServerProcess::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return exit_code(status);
}

std::string ServerProcess::output() const {
  return read_file(log_);
}

}  // namespace tessera::testing
