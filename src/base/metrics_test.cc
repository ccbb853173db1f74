#include "base/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace tessera {
namespace {

TEST(Metrics, RendersEachKind) {
  MetricsRegistry metrics;
  metrics.counter("t_requests_total", "Requests.", {{"route", "/a"}, {"status", "200"}}).add(3);
  metrics.gauge("t_running", "Running.").set(1.5);
  Histogram& seconds = metrics.histogram("t_seconds", "Time.", {0.1, 1.0});
  seconds.observe(0.1);
  seconds.observe(0.5);
  seconds.observe(7.0);
  seconds.observe(std::nan(""));
  EXPECT_EQ(metrics.render(),
            "# HELP t_requests_total Requests.\n"
            "# TYPE t_requests_total counter\n"
            "t_requests_total{route=\"/a\",status=\"200\"} 3\n"
            "# HELP t_running Running.\n"
            "# TYPE t_running gauge\n"
            "t_running 1.5\n"
            "# HELP t_seconds Time.\n"
            "# TYPE t_seconds histogram\n"
            "t_seconds_bucket{le=\"0.1\"} 1\n"
            "t_seconds_bucket{le=\"1\"} 2\n"
            "t_seconds_bucket{le=\"+Inf\"} 3\n"
            "t_seconds_sum 7.6\n"
            "t_seconds_count 3\n");
}

TEST(Metrics, SameNameAndLabelsAreOneSeries) {
  MetricsRegistry metrics;
  Counter& first = metrics.counter("t_total", "Help.", {{"k", "v"}});
  EXPECT_EQ(&first, &metrics.counter("t_total", "Other help.", {{"k", "v"}}));
  EXPECT_NE(&first, &metrics.counter("t_total", "Help.", {{"k", "w"}}));
}

TEST(Metrics, EscapesLabelValuesAndHelp) {
  MetricsRegistry metrics;
  metrics.gauge("t", "a\nb\\c", {{"k", "q\"\\\n"}});
  EXPECT_EQ(metrics.render(), "# HELP t a\\nb\\\\c\n# TYPE t gauge\nt{k=\"q\\\"\\\\\\n\"} 0\n");
}

TEST(MetricsDeathTest, MisuseIsABug) {
  MetricsRegistry metrics;
  metrics.counter("t", "Help.");
  EXPECT_DEATH(metrics.gauge("t", "Help."), "two kinds");
  EXPECT_DEATH(metrics.counter("1t", "Help."), "bad metric name");
  EXPECT_DEATH(metrics.counter("t", "Help.", {{"a-b", "x"}}), "bad label name");
}

TEST(Metrics, CountsFromManyThreads) {
  MetricsRegistry metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics.counter("t_total", "Help.").add();
        metrics.histogram("t_seconds", "Help.", {1.0}).observe(2.0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.counter("t_total", "Help.").value(), 4000u);
  EXPECT_EQ(metrics.histogram("t_seconds", "Help.", {1.0}).count(), 4000u);
}

}  // namespace
}  // namespace tessera
