// Jobs that go to a worker and back allocate nothing once the first ones have been: neither end,
// with all credits in use.
#include <gtest/gtest.h>

#include <thread>

#include "tests/allocation_hook.h"
#include "worker/channel_pair.h"
#include "worker/scale_handler.h"
#include "worker/session.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;
using tessera::testing::allocations;

// Takes a job apart, as the roles do, and answers with its rows.
class EchoHandler final : public JobHandler {
 public:
  Result<Prepared> prepare(const Hello&, const HelloAck&) override { return Prepared{}; }
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near&) override {
    TESSERA_TRY(decode_experts(header, body, limits, job_));
    return JobOutput{header.rows, limits.n_embd, header.out_type, job_.rows};
  }

 private:
  ExpertsBody job_;
};

class SteadyJobs : public ::testing::TestWithParam<AttachKind> {};

TEST_P(SteadyJobs, AllocateNothing) {
  ChannelPair pair = make_pair({.kind = GetParam()});
  std::thread worker([&] {
    EchoHandler handler;
    Stats stats;
    EXPECT_TRUE(serve(*pair.worker, scale_offer(), handler, stats).ok());
  });
  const Result<HandshakeReply> reply = client_handshake(*pair.client, scale_hello(), after(5s));
  ASSERT_TRUE(reply.ok());
  Session session(std::move(pair.client), scale_hello(), std::get<HelloAck>(*reply));
  const ScaleJob job;
  const auto parts = job.parts();
  const std::size_t credits = session.agreed().credits;
  std::vector<Ticket> tickets(credits);
  std::vector<JobReply> replies(credits);
  std::int64_t before = 0;
  for (int round = 0; round < 2000; ++round) {
    if (round == 200) before = allocations();
    for (Ticket& ticket : tickets) {
      const Result<Ticket> taken = session.submit(job.header, Parts(parts), {5s, 5s});
      ASSERT_TRUE(taken.ok());
      ticket = *taken;
    }
    ASSERT_TRUE(session.beat().ok());
    for (std::size_t i = 0; i < credits; ++i)
      ASSERT_TRUE(*session.wait(tickets[i], replies[i], after(5s)));
  }
  // Where frames meet differs from round to round, so that one of the frames that go round may come
  // late to its first body.
  EXPECT_LE(allocations() - before, 8);
  session.close();
  worker.join();
}

INSTANTIATE_TEST_SUITE_P(Kinds, SteadyJobs,
                         ::testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

}  // namespace
}  // namespace tessera::worker
