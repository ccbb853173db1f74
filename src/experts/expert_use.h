// ExpertUse: what the routed experts of some steps cost, by who computed them.
//
//   ExpertUse of_step = metrics.totals();
//   of_step.add(before, -1.0);                  // since then
//   of_request.add(of_step, rows / rows_of_step);
//
// Of layers with experts away only. Numbers are doubles because a step's are divided among the
// requests that it serves, by their rows.
#pragma once

namespace tessera {

struct ExpertUse {
  struct Executor {
    double calls = 0.0;      // jobs that it was given
    double pairs = 0.0;      // of a row and an expert, that it computed
    double wait_us = 0.0;    // that layers waited for it
    double hidden_us = 0.0;  // that it computed while this process did work of the layer

    void add(const Executor& other, double factor) {
      calls += factor * other.calls;
      pairs += factor * other.pairs;
      wait_us += factor * other.wait_us;
      hidden_us += factor * other.hidden_us;
    }
  };

  double pairs_resident = 0.0;
  // Pairs whose experts crossed to the device for a step; how many crossed, and their bytes.
  double pairs_streamed = 0.0;
  double experts_streamed = 0.0;
  double bytes_streamed = 0.0;
  double experts_ahead = 0.0;  // of those: they came before their layer was computed
  // Pairs of the host that a device foresaw, and that it did not where it foresaw others.
  double pairs_foreseen = 0.0;
  double pairs_unforeseen = 0.0;
  Executor host;
  Executor worker;         // all of them
  double bytes_out = 0.0;  // to workers
  double bytes_in = 0.0;
  double fallbacks = 0.0;  // jobs that the host computed in a worker's place

  void add(const ExpertUse& other, double factor) {
    pairs_resident += factor * other.pairs_resident;
    pairs_streamed += factor * other.pairs_streamed;
    experts_streamed += factor * other.experts_streamed;
    bytes_streamed += factor * other.bytes_streamed;
    experts_ahead += factor * other.experts_ahead;
    pairs_foreseen += factor * other.pairs_foreseen;
    pairs_unforeseen += factor * other.pairs_unforeseen;
    host.add(other.host, factor);
    worker.add(other.worker, factor);
    bytes_out += factor * other.bytes_out;
    bytes_in += factor * other.bytes_in;
    fallbacks += factor * other.fallbacks;
  }
};

}  // namespace tessera
