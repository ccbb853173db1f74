#include "worker/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "worker/attach.h"
#include "worker/scale_handler.h"
#include "worker/session.h"
#include "worker/site.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

SpawnOptions mode(const std::string& name) {
  return {.binary = FAKE_WORKER, .arguments = {"worker", name}};
}

std::unique_ptr<WorkerProcess> spawn(const std::string& name) {
  Result<std::unique_ptr<WorkerProcess>> made = WorkerProcess::spawn(mode(name));
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(*made);
}

constexpr StopTimes kShort{.bye = 50ms, .kill = 60s};

TEST(Process, ServesAndLeaves) {
  auto process = spawn("serve");
  auto channel = *attach_client(process->take_socket(), SocketKind::unix_socket, {}, after(60s));
  EXPECT_EQ(channel->describe(), "shared rings");
  const HandshakeReply reply = *client_handshake(*channel, scale_hello(), after(60s));
  Session session(std::move(channel), scale_hello(), std::get<HelloAck>(reply));
  // Its parent has them too, and ends it when answers have ended.
  for (const int signal : {SIGTERM, SIGINT}) ASSERT_EQ(::kill(process->pid(), signal), 0);
  const ScaleJob job;
  const auto parts = job.parts();
  const Ticket ticket = *session.submit(job.header, Parts(parts));
  JobReply answer;
  ASSERT_TRUE(*session.wait(ticket, answer, after(60s)));
  EXPECT_TRUE(all_nines(answer.body));
  EXPECT_FALSE(process->ended());
  ASSERT_TRUE(process->stop({.bye = 60s}, [&] { (void)session.say_bye(); }).ok());
  EXPECT_EQ(process->how(), "exit status 0");
  EXPECT_TRUE(process->stop({}, nullptr).ok()) << "idempotent";
}

TEST(Process, StopsTheRude) {
  auto process = spawn("rude");
  auto channel = attach_client(process->take_socket(), SocketKind::unix_socket, {}, after(60s));
  ASSERT_TRUE(channel.ok());
  ASSERT_TRUE(process->stop(kShort, nullptr).ok());
  EXPECT_EQ(process->how(), "signal 9 (Killed)");
}

TEST(Process, StopsWhatSleeps) {
  auto process = spawn("silent");
  const Fd socket = process->take_socket();
  char byte;
  ASSERT_EQ(::read(socket.get(), &byte, 1), 1);
  ASSERT_TRUE(process->stop(kShort, nullptr).ok());
  EXPECT_EQ(process->how(), "signal 9 (Killed)");
}

TEST(Process, StopsWhatIsStopped) {
  auto process = spawn("serve");
  ::kill(process->pid(), SIGSTOP);
  ASSERT_TRUE(process->stop(kShort, nullptr).ok());
  EXPECT_EQ(process->how(), "signal 9 (Killed)");
}

TEST(Process, GivesItsDescriptorsAndNoOthers) {
  const Fd leak(::open("/dev/null", O_RDONLY));  // without close-on-exec
  const Fd high(::fcntl(leak.get(), F_DUPFD, 200));
  auto process = spawn("descriptors");
  EXPECT_TRUE(process->wait(60s));
  EXPECT_EQ(process->how(), "exit status 0");
}

TEST(Process, SaysHowItEnded) {
  auto process = spawn("talk");
  EXPECT_TRUE(process->wait(60s));
  EXPECT_EQ(process->how(), "exit status 3");
}

// Gone, or a zombie that nobody has reaped.
bool is_dead(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string number, name, state;
  file >> number >> name >> state;
  return !file || state == "Z" || state == "X";
}

TEST(Process, DiesWithItsParent) {
  auto process = spawn("orphan");
  const Fd socket = process->take_socket();
  pid_t grandchild = 0;
  ASSERT_EQ(::read(socket.get(), &grandchild, sizeof(grandchild)), ssize_t{sizeof(grandchild)});
  EXPECT_TRUE(process->wait(60s));
  EXPECT_EQ(process->how(), "signal 9 (Killed)");
  for (int i = 0; i < 60'000 && !is_dead(grandchild); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(is_dead(grandchild));
}

TEST(Probe, Answers) {
  const Result<SiteProbe> probe = probe_worker(FAKE_WORKER, {}, after(60s));
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  EXPECT_EQ(probe->version_max, kVersionMax);
  EXPECT_EQ(probe->roles, role_bit(Role::experts));
  EXPECT_GT(probe->round_trip.count(), 0);
}

// Before it is started with a model that it cannot read.
TEST(Probe, AWorkerThatDoesNotKnowTheArchitectureIsRefused) {
  const Model model = *Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
  const auto check = [&](const std::vector<std::string>& arguments) -> Status {
    const WorkerSite site{.name = "worker:0",
                          .role = Role::experts,
                          .spawn = SpawnOptions{.binary = FAKE_WORKER},
                          .probe_arguments = arguments};
    TESSERA_ASSIGN(const Probe probe, probe_site(site, after(60s)));
    return check_model(site, probe, model);
  };
  EXPECT_TRUE(check({})) << "it does not say";
  const Status old = check({"old"});
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().message,
            "worker:0 reads no models of architecture qwen35moe, but of ancient; start it with "
            "the program that this one is");
}

TEST(Probe, OtherProgramsAreNoWorkers) {
  EXPECT_EQ(probe_worker("/nowhere/at/all", {}, after(1s)).error().code, ErrorCode::not_found);
  EXPECT_EQ(probe_worker("/etc", {}, after(1s)).error().code, ErrorCode::invalid);
  EXPECT_EQ(probe_worker("/etc/passwd", {}, after(1s)).error().code, ErrorCode::invalid);
  EXPECT_FALSE(probe_worker("/bin/true", {}, after(60s)).ok());
  const Deadline start = Clock::now();
  EXPECT_FALSE(probe_worker("/bin/tail", {}, after(100ms)).ok());
  EXPECT_LT(Clock::now() - start, 1min);
}

}  // namespace
}  // namespace tessera::worker
