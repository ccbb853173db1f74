// A worker process that listens at a TCP port of this machine or where it is told, as a person
// would have started it, for tests: `BINARY worker ... --listen tcp:127.0.0.1:0`. The destructor
// kills it, as does the end of the thread that started it; start() after end() starts another one
// at the same address.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/fd.h"

namespace tessera::testing {

inline const std::string kToken = "a token of thirty-two characters";

class ListeningProcess {
 public:
  // The system chooses a port 0 at first.
  ListeningProcess(std::string binary, std::vector<std::string> words,
                   std::string address = "tcp:127.0.0.1:0")
      : binary_(std::move(binary)), words_(std::move(words)), address_(std::move(address)) {
    start();
  }
  ~ListeningProcess() { end(); }
  ListeningProcess(const ListeningProcess&) = delete;
  ListeningProcess& operator=(const ListeningProcess&) = delete;

  // The same for life.
  const std::string& address() const { return address_; }
  int pid() const { return pid_; }

  void start() {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    worker::Fd in(ends[0]);
    worker::Fd out(ends[1]);
    std::vector<std::string> words = words_;
    words.insert(words.begin(), binary_);
    words.insert(words.end(), {"--listen", address_});
    std::string token = "TESSERA_WORKER_TOKEN=" + kToken;
    std::vector<char*> argv, environment = {token.data()};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    // A sanitizer is told there where it reports to.
    for (char** entry = environ; *entry != nullptr; ++entry)
      if (!std::string_view(*entry).starts_with("TESSERA_")) environment.push_back(*entry);
    environment.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out.get(), STDOUT_FILENO);
      ::execve(argv[0], argv.data(), environment.data());
      ::_exit(127);
    }
    out = worker::Fd();
    std::string text;
    for (char c; ::read(in.get(), &c, 1) == 1 && c != '\n';) text += c;
    const std::string ready = "worker ready at ";
    ASSERT_TRUE(text.starts_with(ready)) << "it did not start: " << text;
    address_ = text.substr(ready.size());
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  std::string binary_;
  std::vector<std::string> words_;
  std::string address_;
  int pid_ = 0;
};

}  // namespace tessera::testing
