// Changes of state that wait for a job to go with, kept no longer than they need to be.
//
//   job.state_changes.push_back(change);
//   drop_overwritten(job.state_changes);      // where some of them waited
//
// A piece that an earlier shard failed at has changes and makes no job. So where many fail one
// after the other, their changes add up: of these a slot or a page needs the last one alone, and
// those before it that something is copied from.
#pragma once

#include <vector>

#include "worker/jobs.h"

namespace tessera::worker {

// Drops each change whose place is changed again before anything is copied from it. What is left
// does the same, in the same order: no more than one change of each place that nothing is copied
// from. Allocates nothing.
void drop_overwritten(std::vector<WireStateChange>& changes);

}  // namespace tessera::worker
